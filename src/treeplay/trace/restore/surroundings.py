"""The modes of a thread that change what a program does: grad mode and autocast, to be set again when it runs later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

_KINDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Grad mode, and autocast per kind of device where it is on."""

    grad_enabled: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    has_cache: bool

    @classmethod
    def now(cls) -> Surroundings:
        """The modes of this thread."""
        autocast = tuple((kind, torch.get_autocast_dtype(kind)) for kind in _KINDS if torch.is_autocast_enabled(kind))
        return cls(torch.is_grad_enabled(), autocast, torch.is_autocast_cache_enabled())

    @contextlib.contextmanager
    def set(self) -> Iterator[None]:
        """A block under these modes; autocast's cache is emptied at both of its ends."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.grad_enabled))
            for kind, dtype in self.autocast:
                stack.enter_context(torch.autocast(kind, dtype, cache_enabled=self.has_cache))
            stack.enter_context(autocast_cache_apart())
            yield


@contextlib.contextmanager
def autocast_cache_apart() -> Iterator[None]:
    """A block at both of whose ends autocast's cache is emptied: the casts in it are real outside, and fakes inside."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()

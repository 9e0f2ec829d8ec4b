"""The modes of a thread that change what a program does: grad mode and autocast, to be set again when it runs later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from treeplay.torch_seam.flags import AutocastDtypes, autocast_dtypes, under_autocast


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Grad mode, and autocast per kind of device where it is on."""

    grad_enabled: bool
    autocast: AutocastDtypes

    @classmethod
    def now(cls) -> Surroundings:
        """The modes of this thread."""
        return cls(torch.is_grad_enabled(), autocast_dtypes())

    @contextlib.contextmanager
    def set(self) -> Iterator[None]:
        """A block under these modes; autocast's cache is emptied at both of its ends."""
        with torch.set_grad_enabled(self.grad_enabled), under_autocast(self.autocast), autocast_cache_apart():
            yield


@contextlib.contextmanager
def autocast_caches(is_on: bool) -> Iterator[None]:
    """A block in which autocast keeps its casts of parameters, or does not. Whatever torch traces has it keep none, and a block
    of autocast that outlives the call would note that when it is entered, as it never does in eager."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(is_on)
    try:
        with autocast_cache_apart():
            yield
    finally:
        torch.set_autocast_cache_enabled(before)


@contextlib.contextmanager
def autocast_cache_apart() -> Iterator[None]:
    """A block at both of whose ends autocast's cache is emptied: the casts in it are real outside, and fakes inside."""
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()

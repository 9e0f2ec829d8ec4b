"""What a recording freezes of the host: tensors that it does not read on each replay, and random numbers drawn there.

Such tensors (on the CPU in a program on a GPU, or more than plain memory) are watched; a program that writes to one, or draws
numbers on the host, is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import torch

from treeplay.errors import Refusal, TooEarly
from treeplay.torch_seam.autograd import version_of

_MOST_COMPARED = 4096  # elements; of a larger tensor only the version counter is asked
_CPU = torch.device("cpu")


class HostState:
    """The tensors and generators of the host that a program on `device` reaches, as they were when it was made."""

    def __init__(
        self, tensors: Iterable[torch.Tensor], device: torch.device, generators: Iterable[torch.Generator]
    ) -> None:
        self.device = device
        self.tensors = list(tensors)
        self._versions = [version_of(tensor) for tensor in self.tensors]
        # While the CPU is recorded, to compare would be part of the recording.
        self._values = [
            tensor.detach().clone() if device != _CPU and _is_compared(tensor) else None for tensor in self.tensors
        ]
        drawn = [torch.default_generator, *(item for item in generators if item.device == _CPU)]
        self._generators = drawn if device != _CPU else []  # a recording on the CPU draws anew

    @property
    def is_the_same(self) -> bool:
        """Whether no tensor was written to with other values."""
        return all(
            _is_equal(tensor, value) if value is not None else version_of(tensor) == version
            for tensor, version, value in zip(self.tensors, self._versions, self._values, strict=True)
        )

    @contextlib.contextmanager
    def apart(
        self, refuse: Callable[[str, str, str], Refusal], may_have_drawn: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Run a program without its leaving a mark here; refuses one that does.

        `may_have_drawn`: asked after the run, whether numbers that were drawn on the host may be the program's. Another
        thread's stay drawn, and a later call is looked at again: was it the program after all, it is refused in the end."""
        states = [generator.get_state() for generator in self._generators]
        is_its_own: bool | None = None  # what was drawn, if anything was
        try:
            yield
            if not self.is_the_same:
                raise refuse(
                    "tensor on the CPU",
                    f"the program writes to a tensor that a recording on {self.device} does not follow",
                    f"keep it on {self.device} (an optimizer's step counts: capturable=True or fused=True)",
                )
            has_moved = self._have_moved(states)
            is_its_own = has_moved and may_have_drawn()
            if has_moved:
                refusal = refuse(
                    "random numbers",
                    f"the program draws them on the CPU, so a recording on {self.device} would freeze them",
                    f"draw them on {self.device}, or outside and pass a tensor",
                )
                raise refusal if is_its_own else TooEarly(refusal.reason)
        finally:
            self._put_back()
            if is_its_own is None:
                is_its_own = self._have_moved(states) and may_have_drawn()
            # A generator that stood still is left alone: another thread may draw from it just now.
            for generator, state in zip(self._generators, states, strict=True) if is_its_own else ():
                generator.set_state(state)

    def _have_moved(self, states: list[torch.Tensor]) -> bool:
        """Whether anybody has drawn since the generators had these states."""
        return any(
            not torch.equal(item.get_state(), state) for item, state in zip(self._generators, states, strict=True)
        )

    def _put_back(self) -> None:
        with torch.no_grad():
            for tensor, value in zip(self.tensors, self._values, strict=True):
                if value is not None and not _is_equal(tensor, value):
                    tensor.copy_(value)


def _is_compared(tensor: torch.Tensor) -> bool:
    return tensor.device == _CPU and tensor.layout is torch.strided and tensor.numel() <= _MOST_COMPARED


def _is_equal(tensor: torch.Tensor, value: torch.Tensor) -> bool:
    now = tensor.detach()
    return torch.equal(now, value) or bool(((now == value) | ((now != now) & (value != value))).all())

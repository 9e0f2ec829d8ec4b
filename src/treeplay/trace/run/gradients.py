"""Gradients while a program is traced: the traced thread has fakes in them, and the others see what was there before.

A backward inside of a traced program leaves its fakes in `.grad` of the user's own parameters, since that is where autograd
puts them. So for that time `torch.Tensor.grad` is a property that tells threads apart. What another thread assigns meanwhile
is kept, and is there after the trace. Autograd itself asks nobody: a backward of another thread into the same parameters
meets the fakes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from threading import get_ident
from typing import Any

import torch

from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.patched import ABSENT, stand_in
from treeplay.torch_seam.tensors import TensorBase

_GRAD: Any = vars(TensorBase)["grad"]
_READ, _WRITE = _GRAD.__get__, _GRAD.__set__


def as_taken_over(args: Any) -> Any:
    """The arguments of `new_empty_strided`, by which autograd copies a gradient that a trace holds. Eager takes the gradient
    itself if it lies as the parameter does, where the strides of dimensions of one element do not count."""
    gradient, sizes, strides, *rest = args
    own = gradient.stride()
    is_alike = all(size == 1 or here == there for size, here, there in zip(sizes, own, strides, strict=True))
    return (gradient, sizes, own, *rest) if is_alike else args


class Gradients:
    """What threads besides the traced one see as gradients: `before` the trace, or what they assigned meanwhile."""

    def __init__(self, before: dict[int, tuple[torch.Tensor, torch.Tensor | None]]) -> None:
        self._before = before
        self._assigned: dict[int, torch.Tensor | None] = {}
        self._thread = get_ident()
        self.getter: Any = None
        self.setter: Any = None
        """What function modes are given as the functions that read and assign a gradient, while this is so."""

    def after(self, tensor: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor | None:
        """What goes back into a gradient that the trace has changed."""
        return self._assigned.get(id(tensor), before)

    def is_others(self, tensor: torch.Tensor, now: torch.Tensor | None) -> bool:
        """Whether another thread assigned what is a gradient now."""
        return self._assigned.get(id(tensor), ABSENT) is now

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """A block in which other threads do not see this one's fakes."""

        def read(tensor: torch.Tensor) -> Any:
            raw = _READ(tensor)
            if not self._is_hidden(tensor, raw):
                return raw
            return self._assigned.get(id(tensor), self._before[id(tensor)][1])

        def write(tensor: torch.Tensor, value: Any) -> None:
            if get_ident() != self._thread and id(tensor) in self._before:
                is_hidden = self._is_hidden(tensor, _READ(tensor))
                # Also where no fake hides it: after the trace it tells whose the gradient is.
                self._assigned[id(tensor)] = value
                if is_hidden:
                    return
            _WRITE(tensor, value)

        # Guards see through the property, to where there is none.
        stand_in(read, ABSENT)
        stand_in(write, ABSENT)
        owner: Any = torch.Tensor
        if "grad" in vars(owner):  # somebody else's property
            yield
            return
        owner.grad = property(read, write, lambda tensor: write(tensor, None))
        self.getter = owner.grad.__get__
        self.setter = owner.grad.__set__
        try:
            yield
        finally:
            del owner.grad
            self.getter = self.setter = None  # which refer to this

    def _is_hidden(self, tensor: torch.Tensor, raw: Any) -> bool:
        return get_ident() != self._thread and isinstance(raw, FakeTensor) and id(tensor) in self._before

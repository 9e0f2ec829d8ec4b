"""Static tensors that a recording reads, the copies that fill them, and samples that are such a tensor themselves.

A sample is the buffer of its argument wherever that is safe. It is not where something else lives in the same bytes: another
sample, a parameter, the buffer of another recording. Filling it would then change more than the argument, so such a sample is
copied once and the copy is the buffer.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch

from treeplay.torch_seam.operators import copy_all, foreach_zero_
from treeplay.torch_seam.tensors import storage_of
from treeplay.values.overlap import interval, overlaps_itself

_address = torch.Tensor.data_ptr


class Buffers:
    """Fixed places for values that come at other addresses. Owned by a recording, which reads them.

    A value that lies in its buffer already is not copied. One that lies elsewhere in the memory of some buffer (the arguments
    in another order, or a slice) is taken aside first, because copies may run side by side.
    """

    __slots__ = ("__weakref__", "_addresses", "_storages", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensor.detach() for tensor in tensors)
        self._addresses = tuple(map(_address, self.tensors))
        self._storages = frozenset(storage_of(tensor) for tensor in self.tensors)

    def fill(self, values: Sequence[torch.Tensor]) -> int:
        """Copy what is not in its place; returns how many were copied. Gradients must be off."""
        targets, sources = [], []
        for tensor, address, value in zip(self.tensors, self._addresses, values, strict=True):
            if _address(value) == address and _is_same_view(tensor, value):
                continue
            targets.append(tensor)
            sources.append(value.clone() if storage_of(value) in self._storages else value)
        copy_all(targets, sources)
        return len(targets)

    def fill_or_zero(self, values: Sequence[torch.Tensor | None]) -> None:
        """Like `fill`; where there is no value the buffer is zeroed."""
        missing = [tensor for tensor, value in zip(self.tensors, values, strict=True) if value is None]
        if missing:
            foreach_zero_(missing)
        self.fill([tensor if value is None else value for tensor, value in zip(self.tensors, values, strict=True)])

    def versions(self) -> tuple[int, ...]:
        """How often each was written by something other than a replay."""
        return tuple([tensor._version for tensor in self.tensors])

    def is_place_of(self, index: int, value: torch.Tensor) -> bool:
        """Whether `value` lies in buffer `index`."""
        return _address(value) == self._addresses[index] and _is_same_view(self.tensors[index], value)


def _is_same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.stride() == b.stride() and a.is_conj() == b.is_conj() and a.is_neg() == b.is_neg()


_claimed: weakref.WeakSet[Buffers] = weakref.WeakSet()


def claim(buffers: Buffers) -> None:
    """Note that a recording uses these buffers; the claim ends with them."""
    _claimed.add(buffers)


class Claims:
    """The memory that buffers must stay away from while some samples are being placed."""

    def __init__(self, state: Iterable[torch.Tensor]) -> None:
        self._taken = [interval(tensor) for tensor in state]
        self._taken += [interval(tensor) for buffers in list(_claimed) for tensor in buffers.tensors]

    def place(self, samples: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A leaf for each sample: over the sample's own memory if that is free, else over a copy."""
        return [self._place(sample) for sample in samples]

    def _place(self, sample: torch.Tensor) -> torch.Tensor:
        if self._is_free(sample):
            self._taken.append(interval(sample))
            return sample.detach().requires_grad_(sample.requires_grad)
        return own_copy(sample)

    def _is_free(self, sample: torch.Tensor) -> bool:
        if sample.is_inference() or overlaps_itself(sample) or isinstance(sample, torch.nn.Parameter):
            return False
        start, end = interval(sample)
        return not any(first < end and start < last for first, last in self._taken)


def own_copy(sample: torch.Tensor) -> torch.Tensor:
    """A leaf with memory of its own."""
    return sample.detach().clone().requires_grad_(sample.requires_grad)

"""Static tensors that a recording reads, and the copies that fill them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treeplay.torch_seam.operators import copy_all, foreach_zero_
from treeplay.torch_seam.tensors import storage_of

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

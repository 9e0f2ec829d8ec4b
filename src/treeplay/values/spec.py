"""What a compiled program may know about a tensor: everything but its address and its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from treeplay.values.layout import span

ANY_SIZE = -1
"""Stands in a spec for a size, or a stride, that may be another one in each call."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and stride in elements, dtype, device and whether autograd records it. A size may be `ANY_SIZE`."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorSpec:
        """The spec of a strided tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad)

    @property
    def nbytes(self) -> int:
        """Bytes from the first to the last element addressed, holes included; 0 for an empty tensor."""
        return span(self.shape, self.stride) * self.dtype.itemsize

    def takes(self, other: TensorSpec) -> bool:
        """Whether a tensor that is like `other` is as this says."""
        return self == other or (self.has_any_size and self._is_like(other))

    @property
    def has_any_size(self) -> bool:
        """Whether a size or a stride may be another one in each call."""
        return ANY_SIZE in self.shape or ANY_SIZE in self.stride

    def _is_like(self, other: TensorSpec) -> bool:
        mine = self.dtype, self.device, self.requires_grad, len(self.shape)
        numbers = zip((*self.shape, *self.stride), (*other.shape, *other.stride), strict=False)
        is_alike = mine == (other.dtype, other.device, other.requires_grad, len(other.shape))
        return is_alike and all(one in (two, ANY_SIZE) or two == ANY_SIZE for one, two in numbers)

    def difference(self, other: TensorSpec) -> str:
        """What differs, as `shape (3, 4), recorded with (3, 5)`, or an empty string."""
        names = ("shape", "stride", "dtype", "device", "requires_grad")
        return "; ".join(
            f"{name} {getattr(self, name)}, recorded with {getattr(other, name)}"
            for name in names
            if getattr(self, name) != getattr(other, name)
        )

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        grad = " grad" if self.requires_grad else ""
        sizes = ", ".join("any" if size == ANY_SIZE else str(size) for size in self.shape)
        return f"{dtype}[{sizes}]{grad}"


def layout_text(dtype: torch.dtype, device: torch.device, shape: Sequence[int], strides: Sequence[int] | None) -> str:
    """How a tensor lies, for a message."""
    return f"{dtype} {list(shape)} of strides {tuple(strides) if strides is not None else None} on {device}"

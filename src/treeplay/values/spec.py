"""What a compiled program may know about a tensor: everything but its address and its values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from treeplay.values.layout import span


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and stride in elements, dtype, device and whether autograd records it."""

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
        return f"{dtype}{list(self.shape)}{grad}"

"""Guards over tensors that are no inputs: what can be read of one besides its values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from treeplay.guards.conditions import Asked, Comparison, Guard
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.torch_seam.tensors import has_strides, is_initialised
from treeplay.values.mismatch import Mismatch
from treeplay.values.spec import layout_text


class HasGradient(Asked):
    """Whether a tensor has a gradient."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor, label: str) -> None:
        self.tensor = tensor
        super().__init__(lambda: tensor.grad is not None, label)


class TensorFacts(Guard):
    """What can be read of a tensor besides its values."""

    __slots__ = ("label", "recorded", "tensor")

    def __init__(self, tensor: torch.Tensor, label: str) -> None:
        self.tensor = tensor
        self.label = label
        self.recorded = facts_of(tensor)

    def differs(self, comparison: Comparison) -> Mismatch | None:
        tensor = comparison.replaced.get(id(self.tensor), self.tensor)
        now = facts_of(tensor)
        if now == self.recorded:
            comparison.commits.append(lambda: setattr(self, "tensor", tensor))
            return None
        return Mismatch(self.label, f"a tensor {_described(self.recorded)}", f"a tensor {_described(now)}")

    def places(self) -> Iterator[tuple[str, Any]]:
        yield self.label, self.tensor


def facts_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What can be read of a tensor besides its values; of one without memory, and of a nested one, nothing is asked that
    would raise."""
    with DisableTorchFunctionSubclass():
        strides = tensor.stride() if has_strides(tensor) else None
        shape = tuple(tensor.shape) if is_initialised(tensor) and not tensor.is_nested else ()
        return type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, shape, strides


def _described(facts: tuple[Any, ...]) -> str:
    _, dtype, device, _, requires_grad, shape, strides = facts
    return layout_text(dtype, device, shape, strides) + (" that needs a gradient" if requires_grad else "")

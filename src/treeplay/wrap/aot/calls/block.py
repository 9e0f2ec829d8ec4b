"""A forward's saved block where the values in it are wanted as tensors, for a backward that takes them one by one.

warm     forward ─▶ [results, weights, block, layout] ─▶ autograd saves two things ─▶ [weights, block, gradients, layout]
opened   [weights, a, b, c, gradients]                 a, b, c are views of the block, and keep it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treeplay.torch_seam import allocator
from treeplay.torch_seam.tensors import StorageName, storage_of, view_in_block
from treeplay.values.block import SavedLayout
from treeplay.values.boxed import Boxed


def open_block(values: Sequence[Any], layout: SavedLayout, first: int) -> list[Any]:
    """The values with each of those in the block as a tensor; in the list they begin at `first`."""
    block_at = first + layout.apart
    block, others = values[block_at], iter(values[first:block_at])
    inner = [next(others) if part is None else view_in_block(block, part.begin, part.spec) for part in layout.parts]
    return [*values[:first], *inner, *values[block_at + 1 :]]


def lying_apart(values: Sequence[Any], block_of: torch.Tensor) -> list[Any]:
    """Values opened from a block as if each was a tensor of its own, to be looked at and not to be kept: what is compiled for
    them is for those of a forward without a block too."""
    memory = storage_of(block_of)
    return [_as_its_own(value) if _is_in(value, memory) else value for value in values]


def _is_in(value: Any, memory: int) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and storage_of(value) == memory


def _as_its_own(tensor: torch.Tensor) -> torch.Tensor:
    nbytes = tensor.untyped_storage().nbytes() - int(tensor.storage_offset()) * tensor.element_size()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(allocator.storage_at(tensor.data_ptr(), tensor.device, nbytes), 0, tensor.shape, tensor.stride())


def from_block(run: Boxed, layout: SavedLayout, first: int) -> Boxed:
    """A backward that takes values one by one, as one that takes the block that they lie in. None of its results lies there:
    a gradient is the user's, who may write to it, and would keep all that the forward saved."""

    def call(args: list[Any]) -> Sequence[Any]:
        values = open_block(args, layout, first)
        # By name: the memory may go as soon as the last value has been used.
        memory = StorageName(args[first + layout.apart])
        args.clear()
        return [value.clone() if memory.is_of(value) else value for value in run(values)]

    return call

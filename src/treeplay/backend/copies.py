"""Copies that lie in memory as their source does: same sizes, strides and overlaps, in the smallest storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treeplay.torch_seam.tensors import first_slices
from treeplay.values import layout


def buffer_like(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor that lies as `tensor` does, at offset 0, without its values."""
    return _strided(tensor.size(), tensor.stride(), tensor)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor that lies as `tensor` does and has its values. Elements that shared an address still do."""
    made = buffer_like(tensor)
    fill(made, tensor)
    return made


def fill(buffer: torch.Tensor, source: torch.Tensor) -> None:
    """Copy values into a buffer that lies as `source` does, also where several elements share an address."""
    sizes, strides = tuple(source.size()), tuple(source.stride())
    if source.stride() == buffer.stride() and layout.overlaps(sizes, strides):
        # All that is between the first and the last element, once: the overlap comes out as it was.
        length = (layout.span(sizes, strides),)
        buffer.as_strided(length, (1,)).copy_(source.as_strided(length, (1,)))
        return
    dimensions = expanded_dimensions(buffer) or ()
    first_slices(buffer, dimensions).copy_(first_slices(source, dimensions))


def expanded_dimensions(value: Any) -> tuple[int, ...] | None:
    """The dimensions of a tensor that repeat one slice; None for what is no tensor: nothing is known of it."""
    if not isinstance(value, torch.Tensor):
        return None
    return layout.expanded(tuple(value.size()), tuple(value.stride()))


def _strided(size: Sequence[int], stride: Sequence[int], like: torch.Tensor) -> torch.Tensor:
    length = layout.span(tuple(size), tuple(stride))
    made = torch.empty(length, dtype=like.dtype, device=like.device)
    return made.as_strided(size, stride)

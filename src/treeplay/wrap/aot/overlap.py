"""Do two tensors, real or fake, share bytes? Conservative: interleaved slices of one storage count as overlapping."""

from __future__ import annotations

import torch

from treeplay.wrap.aot.subclasses import plain_parts
from treeplay.wrap.aot.torch_private import shares_storage


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two, or tensors that they are made of, may have an element's memory in common."""
    return any(_overlap(left, right) for left in plain_parts(one) for right in plain_parts(other))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not shares_storage(one, other):
        return False
    (start, end), (low, high) = _span(one), _span(other)
    return start < high and low < end


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    width = tensor.element_size()
    start = int(tensor.storage_offset()) * width
    return start, start + (int(last) + 1) * width

"""Which tensors share memory: pure interval arithmetic over addresses.

A compiled graph reads its inputs as if each had memory of its own. Where one that is written shares bytes with another,
only a lowering that runs operators in order is right.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treeplay.values.layout import is_nested
from treeplay.values.spec import TensorSpec

Interval = tuple[int, int]


def interval(tensor: torch.Tensor) -> Interval:
    """First and one-past-last address of a tensor's elements; empty tensors have an empty interval."""
    start = tensor.data_ptr()
    return start, start + TensorSpec.of(tensor).nbytes


def overlapping(tensors: Sequence[torch.Tensor], written: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, of tensors that share bytes and of which at least one is in `written`."""
    return overlapping_intervals([*map(interval, tensors)], written)


def overlapping_intervals(spans: Sequence[Interval], written: Sequence[int]) -> list[tuple[int, int]]:
    """The same of tensors whose elements lie in these intervals."""
    marks = set(written)
    pairs: list[tuple[int, int]] = []
    active: list[int] = []
    for index in sorted(range(len(spans)), key=spans.__getitem__):
        start, end = spans[index]
        if start == end:
            continue
        active = [other for other in active if spans[other][1] > start]
        pairs += [(min(index, other), max(index, other)) for other in active if index in marks or other in marks]
        active.append(index)
    return sorted(pairs)


def overlaps_itself(tensor: torch.Tensor | TensorSpec) -> bool:
    """Whether two elements of a tensor may share an address (an expanded or otherwise folded tensor)."""
    stride = tensor.stride if isinstance(tensor, TensorSpec) else tensor.stride()
    dims = sorted((step, size) for size, step in zip(tensor.shape, stride, strict=True) if size > 1)
    return not is_nested(dims)

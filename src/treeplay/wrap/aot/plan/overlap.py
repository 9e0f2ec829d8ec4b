"""Do two tensors, real or fake, have a byte in common? Exact: interleaved slices of one storage do not overlap.

An element of a tensor lies at `offset + i₀·stride₀ + i₁·stride₁ + …`. Two tensors share a byte where the difference of
two such sums is 0. The widest strides are chosen first: what the narrower ones can still make up leaves few choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treeplay.torch_seam.fakes import has_data
from treeplay.torch_seam.tensors import shares_storage
from treeplay.values import layout
from treeplay.values.overlap import Interval, overlaps_itself
from treeplay.wrap.aot.plan.subclasses import plain_parts

_MAX_STEPS = 10_000
"""After that many tries two tensors count as overlapping. Layouts that views can make need a handful."""

Term = tuple[int, int, int]  # a stride, the least and the greatest factor


def overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the two, or tensors that they are made of, have memory in common."""
    return any(_overlap(left, right) for left in plain_parts(one) for right in plain_parts(other))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not shares_storage(one, other):
        return False
    (start, end), (low, high) = byte_span(one), byte_span(other)
    return start < high and low < end and _meet(low - start, [*_terms(one, 1), *_terms(other, -1)])


def is_folded(value: Any) -> bool:
    """Whether elements of a tensor, or of one that it is made of, may share memory; also where its sizes are not known."""
    return any(_is_folded(part) for part in plain_parts(value))


def _is_folded(tensor: torch.Tensor) -> bool:
    if tensor.layout is not torch.strided:
        return False
    is_known = all(type(number) is int for number in (*tensor.size(), *tensor.stride()))
    return not is_known or (tensor.numel() > 1 and overlaps_itself(tensor))


def overlap_across_storages(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors with data have memory in common though their storages are two, as those of one NumPy array are."""
    return any(_meet_across(left, right) for left in plain_parts(one) for right in plain_parts(other))


def _meet_across(one: torch.Tensor, other: torch.Tensor) -> bool:
    if not (has_data(one) and has_data(other)) or one.device != other.device or shares_storage(one, other):
        return False
    try:
        distance = other.data_ptr() - one.data_ptr()
    except RuntimeError:  # what stands for an argument while a program is traced lies nowhere
        return False
    is_near = -length(other) < distance < length(one)
    return is_near and _meet(distance, [*_terms(one, 1), *_terms(other, -1)])


def byte_span(tensor: torch.Tensor) -> Interval:
    """First and one-past-last byte of a tensor's elements in its storage."""
    if tensor.numel() == 0:
        return 0, 0
    width = tensor.element_size()
    start = int(tensor.storage_offset()) * width
    return start, start + int(layout.span(tensor.shape, tensor.stride())) * width


def length(tensor: torch.Tensor) -> int:
    """How many bytes a tensor spans."""
    start, end = byte_span(tensor)
    return end - start


def _terms(tensor: torch.Tensor, sign: int) -> list[Term]:
    """What each dimension, and a byte's place within an element, adds to an address."""
    width = tensor.element_size()
    strides = [(width * int(stride), int(size) - 1) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    terms = [(stride, most) for stride, most in [*strides, (1, width - 1)] if stride and most]
    return [(stride, 0, most) if sign > 0 else (stride, -most, 0) for stride, most in terms]


def _meet(distance: int, terms: Sequence[Term]) -> bool:
    """Whether some choice of factors makes the terms add up to `distance`."""
    merged: dict[int, Interval] = {}
    for stride, least, most in terms:
        low, high = merged.get(stride, (0, 0))
        merged[stride] = low + least, high + most
    ordered = sorted(((stride, *bounds) for stride, bounds in merged.items()), reverse=True)
    reach = [(0, 0)]  # what the terms from here to the narrowest can add up to
    for stride, least, most in reversed(ordered):
        reach.append((reach[-1][0] + stride * least, reach[-1][1] + stride * most))
    reach.reverse()
    steps = 0
    pending = [(0, distance)]
    while pending:
        steps += 1
        if steps > _MAX_STEPS:
            return True
        k, rest = pending.pop()
        if k == len(ordered):
            return True  # the bounds of no terms at all are (0, 0): nothing is left over
        stride, least, most = ordered[k]
        below, above = reach[k + 1]
        first = max(least, -((above - rest) // stride))
        last = min(most, (rest - below) // stride)
        pending += [(k + 1, rest - factor * stride) for factor in range(first, last + 1)]
    return False

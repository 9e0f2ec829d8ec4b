"""How a tensor lies in memory, and arithmetic on that: span, broadcast dimensions, self-overlap. Pure.

span      elements from the first to the last one addressed
expanded  dimensions of stride 0 that show one slice several times
overlap   whether two different index tuples reach one address, expanded dimensions aside
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

EXACT_ELEMENTS = 10**6
"""Up to so many elements an overlap is decided by looking at each address; above, a doubt counts as an overlap."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in its memory, in elements; what `offset` counts from is said where a layout is used."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements the smallest storage has that such a tensor fits in."""
    if 0 in sizes:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def expanded(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions that repeat one slice."""
    return tuple(at for at, (size, stride) in enumerate(zip(sizes, strides, strict=True)) if stride == 0 and size != 1)


def overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two index tuples reach one address, after each expanded dimension is cut to its one slice.

    Never False where they do."""
    if 0 in sizes:
        return False
    dims = sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size != 1 and stride != 0)
    if is_nested(dims):
        return False
    if prod(size for _, size in dims) > EXACT_ELEMENTS:
        return True
    return _hits_twice(dims)


def is_nested(dims: Sequence[tuple[int, int]]) -> bool:
    """Whether each dimension, a stride with a size, steps over all that smaller steps reach: no address is reached twice."""
    reach = 0
    for stride, size in dims:
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _hits_twice(dims: Sequence[tuple[int, int]]) -> bool:
    """Whether the addresses, grown dimension by dimension, ever meet."""
    reached = {0}
    for stride, size in dims:
        grown = {address + stride * step for step in range(size) for address in reached}
        if len(grown) < len(reached) * size:
            return True
        reached = grown
    return False

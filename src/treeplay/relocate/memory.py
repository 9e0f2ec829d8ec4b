"""What a number may mean as an address, in one capture or another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from treeplay.values.nodes import CaptureNotes
from treeplay.values.overlap import Interval

T = TypeVar("T")


def merged(spans: Iterable[Interval]) -> list[Interval]:
    """Spans joined where they touch, sorted."""
    joined: list[Interval] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


class Spans:
    """Stretches of memory, to be asked whether an address lies in one."""

    def __init__(self, spans: Sequence[Interval]) -> None:
        self._spans = merged(spans)

    def __contains__(self, address: int) -> bool:
        # No end is as large: this finds the last span that starts at the address or before.
        index = bisect_right(self._spans, (address, 1 << 64)) - 1
        return index >= 0 and address < self._spans[index][1]


class Stretches(Generic[T]):
    """Whose stretches of memory an address lies in, where they may lie inside of each other. Given as (start, end, owner)."""

    def __init__(self, stretches: Iterable[tuple[int, int, T]]) -> None:
        self._sorted = sorted(stretches, key=lambda stretch: stretch[0])
        self._starts = [start for start, _, _ in self._sorted]
        self._ends = [*accumulate((end for _, end, _ in self._sorted), max)]  # the last end of all that begin so early

    def holding(self, address: int) -> Iterator[T]:
        """The owners of those that hold an address."""
        index = bisect_right(self._starts, address)
        # Where the last end so far is not behind the address, nothing that begins earlier holds it.
        while index and self._ends[index - 1] > address:
            index -= 1
            _, end, owner = self._sorted[index]
            if address < end:
                yield owner


class KnownMemory:
    """The device memory that captures tell of, each what was its own, and the device memory there is besides."""

    def __init__(self, captures: Sequence[CaptureNotes], ranges: Sequence[Interval]) -> None:
        spans = [_spans_of(capture) for capture in captures]
        self._own = [Spans(own) for own in spans]
        self._any = Spans([span for own in spans for span in own])
        self._device = Spans(ranges)

    def is_known(self, value: int) -> bool:
        """Whether it is a device address at all."""
        return value in self._any or value in self._device

    def may_mean(self, value: int, capture: int) -> bool:
        """Whether it is an address that a capture may hold: of its own memory, or of memory that stands apart from all.

        What was another capture's own is stale: it lay in memory that has not been written since.
        """
        return value in self._own[capture] or (value in self._device and value not in self._any)


def _spans_of(capture: CaptureNotes) -> list[Interval]:
    places = [(place.start, place.end) for place in (*capture.tensors, *capture.outputs)]
    return places + [(block.address, block.end) for block in capture.blocks or ()]

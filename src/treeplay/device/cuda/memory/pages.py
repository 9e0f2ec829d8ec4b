"""Which pages of a range are used, and how runs of them are put together of pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PIECE_PAGES = (16, 4, 1)
"""How many pages one piece of memory has: few pieces for long runs, which take long to map otherwise."""


@dataclass(frozen=True, slots=True)
class Run:
    """Pages in a row that are all used, or none of them."""

    start: int
    pages: int
    page_bytes: int
    is_used: bool

    @property
    def end(self) -> int:
        """The first address after it."""
        return self.start + self.pages * self.page_bytes


def runs(start: int, nbytes: int, spans: Iterable[tuple[int, int]], page_bytes: int) -> list[Run]:
    """The runs of the pages from `start` on: those that a span (first address, first after it) reaches are used."""
    used = bytearray(nbytes // page_bytes)
    for first, end in spans:
        low = (max(first, start) - start) // page_bytes
        high = -(-(min(end, start + nbytes) - start) // page_bytes)
        if low < high:
            used[low:high] = b"\1" * (high - low)
    found: list[Run] = []
    at = 0
    while at < len(used):
        end = at
        while end < len(used) and used[end] == used[at]:
            end += 1
        found.append(Run(start + at * page_bytes, end - at, page_bytes, bool(used[at])))
        at = end
    return found


def pieces_of(pages: int, sizes: Sequence[int] = PIECE_PAGES) -> list[int]:
    """The pieces of a run of so many pages, by how many pages each has: as few as there can be. The last size is 1."""
    found = []
    for size in sizes:
        found += [size] * (pages // size)
        pages %= size
    return found

"""Which pages of a recording have memory behind them, and which the same, since they are never used at the same time. Pure.

Torch's allocator gives memory out again in whole blocks, and between those there are gaps. Where addresses and memory are kept
apart, a gap costs nothing while something else has its memory:

    addresses    | a | a | a | b |  -  | c | c | d |        a and b are freed before c and d are made
    memory       | 1 | 2 | 3 | 4 |     | 1 | 2 | 3 |        four pages do for seven

What may share is what torch would let share: memory that was freed goes to what is allocated after that on the same stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

PIECE_PAGES = (16, 4, 1)
"""How many pages one piece of memory has: few pieces for long runs, which take long to map otherwise."""


@dataclass(frozen=True, slots=True)
class Span:
    """Addresses from `start` to `end`, and when they are used: from event `begins` up to event `ends`, both of a stream."""

    start: int
    end: int
    begins: int = 0
    ends: int = 1
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Pages in a row with one unit of memory behind them; None: nobody uses them."""

    start: int
    pages: int
    unit: int | None


@dataclass(frozen=True, slots=True)
class PagePlan:
    """The pages of a range in order, and how many pages each unit of memory has."""

    runs: tuple[Run, ...]
    units: tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Pages:
    """Pages in a row, the times at which they are used as bits of a number, and the two parts that they were split into."""

    pages: int
    times: int
    stream: int | None
    parts: tuple[_Pages, _Pages] | None = None

    def split(self, pages: int) -> tuple[_Pages, _Pages]:
        """The first so many, and the rest."""
        first, rest = (_Pages(size, self.times, self.stream) for size in (pages, self.pages - pages))
        self.parts = first, rest
        return self.parts

    def whole(self) -> Iterator[_Pages]:
        """What was not split any more, in order."""
        if self.parts is None:
            yield self
        else:
            for part in self.parts:
                yield from part.whole()


def plan_pages(start: int, nbytes: int, spans: Iterable[Span], page_bytes: int) -> PagePlan:
    """The memory behind the pages from `start` on: every page that a span reaches has some, and two that are used at the same
    time have different memory."""
    memory: list[_Pages] = []
    placed: list[tuple[int, int, list[_Pages]]] = []  # the first page, how many, and their memory
    for first, pages, times, stream in _alike(start, nbytes // page_bytes, list(spans), page_bytes):
        placed.append((first, pages, _memory_for(pages, times, stream, memory) if times else []))
    numbers = {id(one): number for number, one in enumerate(memory)}
    runs = []
    for first, pages, given in placed:
        at = start + first * page_bytes
        for one in (one for piece in given for one in piece.whole()):
            runs.append(Run(at, one.pages, numbers[id(one)]))
            at += one.pages * page_bytes
        if not given:
            runs.append(Run(at, pages, None))
    return PagePlan(tuple(runs), tuple(one.pages for one in memory))


def _memory_for(pages: int, times: int, stream: int | None, memory: list[_Pages]) -> list[_Pages]:
    """Memory for pages in a row: what is free at their times, then new memory. `memory` is kept up to date."""
    given = []
    for at, one in enumerate(list(memory)) if stream is not None else ():
        if not pages:
            break
        if one.stream != stream or one.times & times:
            continue
        if one.pages > pages:
            place = memory.index(one, at)  # parts of others may have come before it
            memory[place : place + 1] = one.split(pages)
            one = memory[place]
        one.times |= times
        pages -= one.pages
        given.append(one)
    if pages:
        given.append(_Pages(pages, times, stream))
        memory.append(given[-1])
    return given


def _alike(
    start: int, pages: int, spans: Sequence[Span], page_bytes: int
) -> Iterator[tuple[int, int, int, int | None]]:
    """Pages in a row that the same spans reach: the first, how many, when they are used (0: never), and on which stream. None:
    on several, so that they share with nobody."""
    numbers = {time: number for number, time in enumerate(sorted({t for one in spans for t in (one.begins, one.ends)}))}
    begins: dict[int, list[int]] = {0: [], pages: []}
    ends: dict[int, list[int]] = {}
    times = []
    for at, span in enumerate(spans):
        low, high = numbers[span.begins], numbers[span.ends]
        times.append(((1 << (high - low)) - 1) << low)
        first, end = max((span.start - start) // page_bytes, 0), min(-(-(span.end - start) // page_bytes), pages)
        if times[at] and first < end:
            begins.setdefault(first, []).append(at)
            ends.setdefault(end, []).append(at)
    alive: set[int] = set()
    for first, end in pairwise(sorted(begins.keys() | ends.keys())):
        alive.difference_update(ends.get(first, ()))
        alive.update(begins.get(first, ()))
        used = 0
        for at in alive:
            used |= times[at]
        streams = {spans[at].stream for at in alive}
        yield first, end - first, used, streams.pop() if len(streams) == 1 else None


def pieces_of(pages: int, sizes: Sequence[int] = PIECE_PAGES) -> list[int]:
    """The pieces of a run of so many pages, by how many pages each has: as few as there can be. The last size is 1."""
    found = []
    for size in sizes:
        found += [size] * (pages // size)
        pages %= size
    return found

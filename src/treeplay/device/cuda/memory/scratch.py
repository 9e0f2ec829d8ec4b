"""The memory that the scratch of all recordings of a device shares.

Scratch is dead between two launches, and launches of a device follow one another. So each recording has addresses of its own
for it, and the same memory lies behind the addresses of all: as much as the recording takes that takes most.

    memory         [128 MiB] [32 MiB] [32 MiB] [8 MiB] [2 MiB] [2 MiB]
    recording A     used      used     used     used    used    used
    recording B               used                      used
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch

from treeplay.device.cuda.memory import mapping
from treeplay.device.cuda.memory.pages import pieces_of
from treeplay.device.cuda.memory.pool import emptied
from treeplay.locks import shared_lock

FILLER_PAGES = (8, 1)


class Share:
    """What one recording uses of it: `memory` by pages of a piece, in the order in which it is handed out."""

    def __init__(self, memory: dict[int, list[int]], page_bytes: int) -> None:
        self.counts = Counter({pages: len(handles) for pages, handles in memory.items()})
        self._left = {pages: iter(handles) for pages, handles in memory.items()}
        self._page_bytes = page_bytes

    @property
    def nbytes(self) -> int:
        """All of it."""
        return sum(pages * count for pages, count in self.counts.items()) * self._page_bytes

    def pieces(self, start: int, pages: int) -> Iterator[tuple[int, int, int]]:
        """For the next run, which begins at `start`: address, bytes and memory of each piece."""
        for size in pieces_of(pages):
            nbytes = size * self._page_bytes
            yield start, nbytes, next(self._left[size])
            start += nbytes


class Scratch:
    """The memory of one device."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._memory: dict[int, list[int]] = {}  # pieces by how many pages they have
        self._shares: list[Share] = []
        self._filler: dict[int, int] = {}
        self._fillers = 0  # who uses it
        self._lock = shared_lock()

    @property
    def nbytes(self) -> int:
        """All the memory that there is by now."""
        pages = sum(size * len(handles) for size, handles in self._memory.items())
        return pages * mapping.granularity(self.index) if pages else 0

    def share(self, runs: Iterable[int]) -> Share:
        """Memory for runs of so many pages each, in order. Raises `torch.OutOfMemoryError`."""
        counts = Counter(size for pages in runs for size in pieces_of(pages))
        unit = mapping.granularity(self.index)
        with self._lock:
            try:
                for size, count in counts.items():
                    there = self._memory.setdefault(size, [])
                    while len(there) < count:
                        there.append(_made(self.index, size * unit))
            except BaseException:
                self._trim()
                raise
            share = Share({size: self._memory[size][:count] for size, count in counts.items()}, unit)
            self._shares.append(share)
            return share

    def give_back(self, share: Share) -> None:
        """A recording has gone; memory that only it used goes."""
        with self._lock:
            self._shares.remove(share)
            self._trim()

    def filler(self) -> dict[int, int]:
        """The memory behind addresses that are only written down: a piece for each number of pages in `FILLER_PAGES`."""
        unit = mapping.granularity(self.index)
        with self._lock:
            for pages in FILLER_PAGES:
                if pages not in self._filler:
                    self._filler[pages] = _made(self.index, pages * unit)
            self._fillers += 1
            return dict(self._filler)

    def give_back_filler(self) -> None:
        """One user less."""
        with self._lock:
            self._fillers -= 1
            if self._fillers == 0:
                _release(list(self._filler.values()))
                self._filler.clear()

    def _trim(self) -> None:
        """Let go what no share reaches."""
        for size, there in self._memory.items():
            most = max((share.counts[size] for share in self._shares), default=0)
            _release(there[most:])
            del there[most:]


def _made(index: int, nbytes: int) -> int:
    try:
        return mapping.make_memory(index, nbytes)
    except torch.OutOfMemoryError:
        emptied()
        return mapping.make_memory(index, nbytes)


def _release(memory: Sequence[int]) -> None:
    for one in memory:
        mapping.release_memory(one)

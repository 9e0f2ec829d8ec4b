"""The memory that the scratch of all recordings of a device shares.

Scratch is dead between two launches, and launches of a device follow one another. So each recording has addresses of its own
for it, and the same memory lies behind the addresses of all: as much as the recording takes that takes most.

    memory         [32 MiB] [32 MiB] [8 MiB] [8 MiB] [2 MiB] [2 MiB]
    recording A     used     used     used            used    used
    recording B     used              used    used
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from treeplay.device.cuda.memory import mapping
from treeplay.device.cuda.memory.pages import pieces_of
from treeplay.device.cuda.memory.pool import emptied
from treeplay.locks import shared_lock

# 18 MiB together, where a page has 2: the larger piece saves mappings, each of which takes its time.
FILLER_PAGES = (8, 1)


@dataclass(eq=False, slots=True)
class Piece:
    """Memory of so many pages, and how many recordings use it."""

    memory: int
    pages: int
    users: int = 0


class Share:
    """What one recording uses of it: units of so many pages each, and the pieces that make each up."""

    def __init__(self, units: Sequence[Sequence[Piece]], page_bytes: int) -> None:
        self.units = units
        self._page_bytes = page_bytes

    @property
    def nbytes(self) -> int:
        """All of it."""
        return sum(piece.pages for unit in self.units for piece in unit) * self._page_bytes

    def pieces(self, unit: int, start: int) -> Iterator[tuple[int, int, int]]:
        """For a unit behind the addresses from `start` on: address, bytes and memory of each piece."""
        for piece in self.units[unit]:
            nbytes = piece.pages * self._page_bytes
            yield start, nbytes, piece.memory
            start += nbytes


class Scratch:
    """The memory of one device."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._pieces: list[Piece] = []  # the largest first
        self._filler: dict[int, int] = {}
        self._fillers = 0  # who uses it
        self._lock = shared_lock()

    @property
    def nbytes(self) -> int:
        """All the memory that there is by now."""
        pages = sum(piece.pages for piece in self._pieces)
        return pages * mapping.granularity(self.index) if pages else 0

    def share(self, units: Iterable[int]) -> Share:
        """Memory for units of so many pages each, in order: what is there already before any is made. Raises
        `torch.OutOfMemoryError`."""
        with self._lock:
            free = list(self._pieces)
            try:
                share = Share([self._unit(pages, free) for pages in units], mapping.granularity(self.index))
            except BaseException:
                # What was made for it already has no user yet, and goes.
                self._trim()
                raise
            for piece in (piece for unit in share.units for piece in unit):
                piece.users += 1
            return share

    def share_of_all(self) -> Share:
        """All the memory that there is, in one unit."""
        with self._lock:
            for piece in self._pieces:
                piece.users += 1
            return Share([list(self._pieces)], mapping.granularity(self.index))

    def _unit(self, pages: int, free: list[Piece]) -> list[Piece]:
        """Pieces that make up a unit: of those that are free as long as they fit, then new ones."""
        found: list[Piece] = []
        for piece in list(free):
            if piece.pages <= pages:
                found.append(piece)
                free.remove(piece)
                pages -= piece.pages
        for size in pieces_of(pages):
            nbytes = size * mapping.granularity(self.index)
            self._check_limit(nbytes)
            made = Piece(_made(self.index, nbytes), size)
            insort(self._pieces, made, key=lambda piece: -piece.pages)
            found.append(made)
        return found

    def _check_limit(self, nbytes: int) -> None:
        """Raise `torch.OutOfMemoryError` if so much more is beyond what the process allows torch, which counts this as well."""
        fraction = torch.cuda.get_per_process_memory_fraction(self.index)
        if fraction < 1.0:
            allowed = fraction * torch.cuda.get_device_properties(self.index).total_memory
            if self.nbytes + nbytes + torch.cuda.memory_reserved(self.index) > allowed:
                raise torch.OutOfMemoryError("the scratch of recordings is beyond what the process may use of the GPU")

    def give_back(self, share: Share) -> None:
        """A recording has gone; memory that only it used goes."""
        with self._lock:
            for piece in (piece for unit in share.units for piece in unit):
                piece.users -= 1
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
        """Let go what nobody uses."""
        _release([piece.memory for piece in self._pieces if not piece.users])
        self._pieces = [piece for piece in self._pieces if piece.users]


def _made(index: int, nbytes: int) -> int:
    try:
        return mapping.make_memory(index, nbytes)
    except torch.OutOfMemoryError:
        emptied()
        return mapping.make_memory(index, nbytes)


def _release(memory: Sequence[int]) -> None:
    for one in memory:
        mapping.release_memory(one)

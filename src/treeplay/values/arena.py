"""An arena: one piece of memory in which buffers that are never alive together share bytes.

The largest is placed first, each in the tightest gap that is free during its whole life (greedy by size, as in Pisarchyk and
Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

ALIGNMENT_BYTES = 64  # what torch's own host allocator gives; BLAS results may depend on it
ALIGNMENT_INSIDE_BYTES = 512  # of a buffer in another: a multiple of that


def aligned(nbytes: int, alignment: int = ALIGNMENT_BYTES) -> int:
    """`nbytes` rounded up to a multiple of the alignment."""
    return -(-nbytes // alignment) * alignment


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory that is needed from step `first_step` to step `last_step`, both included."""

    id: int
    nbytes: int
    first_step: int
    last_step: int

    def meets(self, other: Buffer) -> bool:
        """Whether there is a step at which both are needed."""
        return self.first_step <= other.last_step and other.first_step <= self.last_step

    def __str__(self) -> str:
        return f"buffer {self.id}: {self.nbytes} bytes, steps {self.first_step} to {self.last_step}"


@dataclass(frozen=True, slots=True)
class ArenaBuffer:
    """A buffer with its place: `offset` in bytes from the start of the arena."""

    buffer: Buffer
    offset: int

    @property
    def end(self) -> int:
        """The first byte after it, rounded up to the alignment."""
        return self.offset + aligned(self.buffer.nbytes)


@dataclass(frozen=True, slots=True)
class ArenaPlan:
    """Blocks in the order their buffers were given, and how long the arena is."""

    blocks: tuple[ArenaBuffer, ...]
    total_bytes: int

    def offsets(self) -> dict[int, int]:
        """The offset of each buffer by its id."""
        return {block.buffer.id: block.offset for block in self.blocks}

    def __str__(self) -> str:
        wanted = sum(aligned(block.buffer.nbytes) for block in self.blocks)
        return f"arena: {len(self.blocks)} buffers of {wanted} bytes in {self.total_bytes} bytes"


def largest_first(buffers: Iterable[Buffer]) -> list[Buffer]:
    """In the order in which they are placed."""
    # Sorting is stable: of two alike, the first comes first. Identities take no part, as they may be addresses.
    return sorted(buffers, key=lambda item: (-item.nbytes, item.first_step))


def tightest_gap(buffer: Buffer, placed: Sequence[ArenaBuffer]) -> int:
    """Where the least room is left over; the end of all that is in the way, if no gap is large enough."""
    needed = aligned(buffer.nbytes)
    in_the_way = sorted((block for block in placed if block.buffer.meets(buffer)), key=lambda block: block.offset)
    gaps = list(_gaps(in_the_way))
    fitting = [(size, start) for start, size in gaps[:-1] if size >= needed]
    return min(fitting)[1] if fitting else gaps[-1][0]


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Where a buffer lies: in which other one, and how many bytes behind its beginning."""

    outer: int
    offset: int


def places_inside(outer: Iterable[Buffer], buffers: Iterable[Buffer]) -> dict[int, BufferPlace]:
    """Which of the `buffers` lie in others, and where in them, all by their ids.

    No two that are alive at once overlap, and none is alive any more when the one that it lies in is first needed. Each lies in
    the smallest that has room. Offsets are multiples of `ALIGNMENT_INSIDE_BYTES`.
    """
    rooms = sorted(outer, key=lambda item: item.nbytes)
    inside: dict[int, list[ArenaBuffer]] = {room.id: [] for room in rooms}
    found: dict[int, BufferPlace] = {}
    for buffer in largest_first(buffers):
        padded = replace(buffer, nbytes=aligned(buffer.nbytes, ALIGNMENT_INSIDE_BYTES))
        for room in rooms:
            if buffer.last_step >= room.first_step or padded.nbytes > room.nbytes:
                continue
            offset = tightest_gap(padded, inside[room.id])
            if offset + padded.nbytes <= room.nbytes:
                found[buffer.id] = BufferPlace(room.id, offset)
                inside[room.id].append(ArenaBuffer(padded, offset))
                break
    return found


def _gaps(blocks: Sequence[ArenaBuffer]) -> Iterator[tuple[int, int]]:
    """The free stretches between blocks sorted by offset, as start and size; the last one has no end."""
    start = 0
    for block in blocks:
        if block.offset > start:
            yield start, block.offset - start
        start = max(start, block.end)
    yield start, 0

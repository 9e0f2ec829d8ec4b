"""An arena: one piece of memory in which buffers that are never alive together share bytes."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT_BYTES = 64  # what torch's own host allocator gives; BLAS results may depend on it


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to a multiple of the alignment."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


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

"""Lays out an arena: buffers with lifetimes go in, offsets come out. Pure and deterministic.

    step        0 1 2 3 4 5
    64 bytes    a a a . c c       c lies where a was; b meets both
    32 bytes    . b b b b .

The largest buffer is placed first, each in the tightest gap that is free during its whole life.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.fx

from treeplay.lower.aten.storage import Home, survey_storages
from treeplay.values.arena import ArenaBuffer, ArenaPlan, Buffer, aligned


def plan_arena(graph: torch.fx.Graph) -> ArenaPlan:
    """The arena of a traced graph: one buffer per storage that operators can write into, by its `meta["storage"]`.

    Storages of inputs and outputs are not in it, nor are constants and what operators allocate themselves.
    """
    return pack(
        [
            Buffer(storage.birth.meta["storage"], storage.nbytes, storage.first, storage.last)
            for storage in survey_storages(graph).storages
            if storage.home is Home.ARENA
        ]
    )


def pack(buffers: Sequence[Buffer]) -> ArenaPlan:
    """Give each buffer an offset such that no two that meet overlap."""
    placed: list[ArenaBuffer] = []
    # Sorting is stable: of two alike, the first comes first. Identities take no part, as they may be addresses.
    for buffer in sorted(buffers, key=lambda item: (-item.nbytes, item.first_step)):
        placed.append(ArenaBuffer(buffer, _tightest_gap(buffer, placed)))
    by_buffer = {id(block.buffer): block for block in placed}
    blocks = tuple(by_buffer[id(buffer)] for buffer in buffers)
    return ArenaPlan(blocks, max((block.end for block in blocks), default=0))


def _tightest_gap(buffer: Buffer, placed: list[ArenaBuffer]) -> int:
    """Where the least room is left over; the end of all that is in the way, if no gap is large enough."""
    needed = aligned(buffer.nbytes)
    in_the_way = sorted((block for block in placed if block.buffer.meets(buffer)), key=lambda block: block.offset)
    gaps = list(_gaps(in_the_way))
    fitting = [(size, start) for start, size in gaps[:-1] if size >= needed]
    return min(fitting)[1] if fitting else gaps[-1][0]


def _gaps(blocks: list[ArenaBuffer]) -> Iterator[tuple[int, int]]:
    """The free stretches between blocks sorted by offset, as start and size; the last one has no end."""
    start = 0
    for block in blocks:
        if block.offset > start:
            yield start, block.offset - start
        start = max(start, block.end)
    yield start, 0

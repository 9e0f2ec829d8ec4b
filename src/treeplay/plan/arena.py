"""Lays out an arena: buffers with lifetimes go in, offsets come out. Pure and deterministic.

    step        0 1 2 3 4 5
    64 bytes    a a a . c c       c lies where a was; b meets both
    32 bytes    . b b b b .

The largest buffer is placed first, each in the tightest gap that is free during its whole life.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.fx

from treeplay.lower.aten.storage import Home, survey_storages
from treeplay.values.arena import ArenaBuffer, ArenaPlan, Buffer, largest_first, tightest_gap


def plan_arena(graph: torch.fx.Graph) -> ArenaPlan:
    """The arena of a traced graph: one buffer per storage that operators can write into, by its `meta["storage"]`.

    Storages of inputs and outputs are not in it, nor are constants and what operators allocate themselves.
    """
    return pack([storage.buffer for storage in survey_storages(graph).storages if storage.home is Home.ARENA])


def pack(buffers: Sequence[Buffer]) -> ArenaPlan:
    """Give each buffer an offset such that no two that meet overlap."""
    placed: list[ArenaBuffer] = []
    for buffer in largest_first(buffers):
        placed.append(ArenaBuffer(buffer, tightest_gap(buffer, placed)))
    by_buffer = {id(block.buffer): block for block in placed}
    blocks = tuple(by_buffer[id(buffer)] for buffer in buffers)
    return ArenaPlan(blocks, max((block.end for block in blocks), default=0))

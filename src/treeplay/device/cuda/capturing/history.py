"""What the allocator did during a capture, from its own history, and where its memory lies.

    with allocations(device, pool) as seen:
        capture()
    seen.blocks         every allocation of the pool, in order; None if somebody else records the history
    seen.lifetimes      when each was there

There is one history per process. Where a user records it, it is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.device.cuda.capturing.streams import index_of
from treeplay.relocate.memory import Spans
from treeplay.torch_seam import allocator
from treeplay.torch_seam.allocator import Pool
from treeplay.values.nodes import Allocation
from treeplay.values.overlap import Interval

_MAX_ENTRIES = 1 << 20


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When an allocation was there: from one event of a stream up to another one."""

    begins: int
    ends: int
    stream: int


@dataclass(slots=True)
class AllocationHistory:
    """Filled when the block ends, from the `entries` of the pool: allocations, what `note_allocations` noted beside each, and
    how long each was there."""

    blocks: tuple[Allocation, ...] | None = None
    notes: tuple[str, ...] = ()
    lifetimes: tuple[Lifetime, ...] = ()
    entries: Sequence[dict[str, Any]] = ()


@contextmanager
def allocations(device: torch.device, pool: Pool) -> Iterator[AllocationHistory]:
    """See what is allocated from a pool of a device while the block runs."""
    torch.cuda.init()  # asked of an allocator that is not there yet, torch reads what is not its own
    seen, note = AllocationHistory(), allocator.noted_allocations()
    if allocator.is_recording_history():
        try:
            yield seen
        finally:
            allocator.note_allocations(note)
        return
    allocator.start_history(_MAX_ENTRIES)
    try:
        yield seen
        state = allocator.allocator_state()
    finally:
        allocator.note_allocations(note)
        allocator.stop_history()
    entries = state.histories[index_of(device)]
    if len(entries) < _MAX_ENTRIES:  # else the oldest were overwritten
        within = Spans(_ranges(state.segments_of(pool)))
        entries = [entry for entry in entries if entry.get("addr", 0) in within]
        seen.blocks, seen.notes, seen.entries = blocks_of(entries), notes_of(entries), entries
        seen.lifetimes = lifetimes_of(entries)


def blocks_of(entries: Sequence[dict[str, Any]]) -> tuple[Allocation, ...]:
    """The allocations among the entries of a history."""
    return tuple(Allocation(entry["addr"], entry["size"]) for entry in entries if entry["action"] == "alloc")


def notes_of(entries: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What was noted beside each allocation among the entries of a history."""
    return tuple(str(entry.get("user_metadata", "")) for entry in entries if entry["action"] == "alloc")


def device_ranges() -> list[Interval]:
    """All memory that torch's allocator holds on GPUs, as starts and ends."""
    return _ranges(allocator.allocator_state().segments)


def lifetimes_of(entries: Sequence[dict[str, Any]]) -> tuple[Lifetime, ...]:
    """How long each allocation among the entries of a history was there."""
    begun: dict[int, int] = {}  # by address: the last allocation that was not freed
    found: list[Lifetime] = []
    for at, entry in enumerate(entries):
        if entry["action"] == "alloc":
            begun[entry["addr"]] = len(found)
            found.append(Lifetime(at, len(entries), int(entry.get("stream", 0))))
        # Not when it is asked for: memory that another stream uses is there for as long.
        elif entry["action"] == "free_completed" and entry["addr"] in begun:
            freed = begun.pop(entry["addr"])
            found[freed] = replace(found[freed], ends=at)
    return tuple(found)


def _ranges(segments: Sequence[dict[str, Any]]) -> list[Interval]:
    return [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments]

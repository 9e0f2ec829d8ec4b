"""What the allocator did during a capture, from its own history, and where its memory lies.

    with allocations(device, pool) as seen:
        capture()
    seen.blocks         every allocation of the pool, in order; None if somebody else records the history

There is one history per process. Where a user records it, it is left alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.torch_seam import allocator
from treeplay.values.nodes import Allocation

Range = tuple[int, int]
Pool = tuple[int, int]

_MAX_ENTRIES = 1 << 20


@dataclass(slots=True)
class AllocationHistory:
    """Filled when the block ends. `most_alive`: by size as the allocator rounds it, how many there were at a time.

    `notes`: what `note_allocations` had the allocator note beside each block."""

    blocks: tuple[Allocation, ...] | None = None
    notes: tuple[str, ...] = ()
    most_alive: Mapping[int, int] = field(default_factory=dict)

    def after(self, count: int) -> tuple[Allocation, ...] | None:
        """The blocks but for the first ones."""
        return None if self.blocks is None else self.blocks[count:]


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
    entries = state.histories[_index(device)]
    if len(entries) < _MAX_ENTRIES:  # else the oldest were overwritten
        within = Ranges(_ranges(state.segments_of(pool)))
        entries = [entry for entry in entries if entry.get("addr") in within]
        seen.blocks, seen.most_alive, seen.notes = blocks_of(entries), most_alive_of(entries), notes_of(entries)


def blocks_of(entries: Sequence[dict[str, Any]]) -> tuple[Allocation, ...]:
    """The allocations among the entries of a history."""
    return tuple(Allocation(entry["addr"], entry["size"]) for entry in entries if entry["action"] == "alloc")


def notes_of(entries: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """What was noted beside each allocation among the entries of a history."""
    return tuple(str(entry.get("user_metadata", "")) for entry in entries if entry["action"] == "alloc")


def most_alive_of(entries: Sequence[dict[str, Any]]) -> dict[int, int]:
    """By rounded size, the most blocks that were allocated at a time."""
    alive: Counter[int] = Counter()
    most: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    for entry in entries:
        if entry["action"] == "alloc":
            size = sizes[entry["addr"]] = Allocation(entry["addr"], entry["size"]).rounded
            alive[size] += 1
            most[size] = max(most[size], alive[size])
        elif entry["action"] == "free_completed" and entry["addr"] in sizes:
            alive[sizes.pop(entry["addr"])] -= 1
    return dict(most)


def device_ranges() -> list[Range]:
    """All memory that torch's allocator holds on GPUs, as starts and ends."""
    return _ranges(allocator.allocator_state().segments)


class Ranges:
    """Ranges that do not overlap, to be asked whether an address lies in one."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._sorted = sorted(ranges)
        self._starts = [start for start, _ in self._sorted]

    def __contains__(self, address: int | None) -> bool:
        if address is None:
            return False
        index = bisect_right(self._starts, address) - 1
        return index >= 0 and address < self._sorted[index][1]


def _ranges(segments: Sequence[dict[str, Any]]) -> list[Range]:
    return [(segment["address"], segment["address"] + segment["total_size"]) for segment in segments]


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index

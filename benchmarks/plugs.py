"""Makes the outputs of a capture lie apart from its intermediates, so that each word tells which of the two it means.

Without this an output often takes memory that an intermediate has just left, capture after capture, and the words of both look
the same. So before a capture begins in earnest, free blocks are laid out, one that fits exactly for each output and for each
intermediate up to that size, with something between them. The allocator prefers an exact fit, so that memory is reused by
what is equally large and by nothing else.

    plugs = plan_plugs(most_alive_of(seen.entries), outputs)    from the first capture, which is made without
    with allocations(device, pool) as seen, capturing(...):
        guards = plugs.place(device, seed=1)                first of all, and kept until the capture ends
        outputs = run()
    blocks = seen.blocks[guards.count :]

They cost memory while a program is recorded, about what the program itself needs; a limit leaves out the largest.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.values.nodes import Placed

_SMALL_BYTES = 1 << 20  # the allocator keeps larger blocks apart from smaller ones
_MOST_SPACERS = 16
_MOST_HOLES, _MOST_LARGE_HOLES = 64, 8
MOST_BYTES = 1 << 30


@dataclass(slots=True, eq=False)
class Spacers:
    """What keeps plugs apart while it is kept. `count`: how many allocations it took to lay them out."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True, slots=True)
class Plugs:
    """Sizes of the blocks to lay out."""

    sizes: tuple[int, ...] = ()

    def place(self, device: torch.device, *, seed: int) -> Spacers:
        """Lay them out in the pool that is being allocated from."""
        if not self.sizes:
            return Spacers()
        spacer = random.Random(seed).randrange(1, _MOST_SPACERS) * 512
        layout = _Layout(device, [_bytes(spacer, device)])
        blocks = [layout.block(size) for size in self.sizes]
        count = len(blocks) + len(layout.guards)
        return Spacers(layout.guards, count)


@dataclass(slots=True, eq=False)
class _Layout:
    """Lays out blocks with something between them. Free blocks that touch would become one that fits nothing."""

    device: torch.device
    guards: list[torch.Tensor]

    def block(self, size: int) -> torch.Tensor:
        """A block with a guard right behind it, unless there is something there already."""
        block = _bytes(size, self.device)
        is_small = size <= _SMALL_BYTES
        guard_bytes = 512 if is_small else _SMALL_BYTES + 512
        for _ in range(_MOST_HOLES if is_small else _MOST_LARGE_HOLES):  # the first guards may fill holes elsewhere
            guard = _bytes(guard_bytes, self.device)
            self.guards.append(guard)
            if guard.data_ptr() == block.data_ptr() + size:
                break
        return block


def plan_plugs(most_alive: Mapping[int, int], outputs: Sequence[Placed], *, most_bytes: int = MOST_BYTES) -> Plugs:
    """Blocks for the sizes, with how many there are at a time, up to that of the largest output."""
    largest = max((_rounded(output.nbytes) for output in outputs), default=0)
    sizes: list[int] = []
    total = 0
    for size, count in sorted(most_alive.items()):
        total += size * count
        if size > largest or total > most_bytes:
            break
        sizes += [size] * count
    return Plugs(tuple(sizes))


def _rounded(nbytes: int) -> int:
    return -(-max(nbytes, 1) // 512) * 512


def most_alive_of(entries: Sequence[dict[str, Any]]) -> dict[int, int]:
    """By size as the allocator rounds it, the most blocks that were allocated at a time, from the entries of its history."""
    alive: Counter[int] = Counter()
    most: Counter[int] = Counter()
    sizes: dict[int, int] = {}
    for entry in entries:
        if entry["action"] == "alloc":
            size = sizes[entry["addr"]] = _rounded(entry["size"])
            alive[size] += 1
            most[size] = max(most[size], alive[size])
        elif entry["action"] == "free_completed" and entry["addr"] in sizes:
            alive[sizes.pop(entry["addr"])] -= 1
    return dict(most)


def _bytes(count: int, device: torch.device) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device=device)

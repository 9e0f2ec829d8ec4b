"""Makes the outputs of a capture lie apart from its intermediates, so that each word tells which of the two it means.

Without this an output often takes memory that an intermediate has just left, capture after capture, and the words of both look
the same. So before a capture begins in earnest, free blocks are laid out, one that fits exactly for each output and for each
intermediate up to that size, with something between them. The allocator prefers an exact fit, so that memory is reused by
what is equally large and by nothing else.

    plugs = plan_plugs(seen.most_alive, outputs)            from the first capture, which is made without
    with allocations(device, pool) as seen, capturing(...):
        guards = plugs.place(device, seed=1)                first of all, and kept until the capture ends
        outputs = run()
    blocks = seen.after(plugs.count)

They cost memory while a program is recorded, about what the program itself needs; a limit leaves out the largest.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from treeplay.facts.nodes import Block, Placed

_SMALL_BYTES = 1 << 20  # the allocator keeps larger blocks apart from smaller ones
_MOST_SPACERS = 16
MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Plugs:
    """Sizes of the blocks to lay out."""

    sizes: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """How many allocations laying them out takes."""
        return 2 * len(self.sizes) + 1 if self.sizes else 0

    def place(self, device: torch.device, *, seed: int) -> list[torch.Tensor]:
        """Lay them out in the pool that is being allocated from. What is returned keeps them apart while it is kept."""
        if not self.sizes:
            return []
        spacer = random.Random(seed).randrange(1, _MOST_SPACERS) * 512
        guards = [_bytes(spacer, device)]
        blocks = []
        for size in self.sizes:
            blocks.append(_bytes(size, device))
            guards.append(_bytes(512 if size <= _SMALL_BYTES else _SMALL_BYTES + 512, device))
        del blocks
        return guards


def plan_plugs(most_alive: Mapping[int, int], outputs: Sequence[Placed], *, most_bytes: int = MOST_BYTES) -> Plugs:
    """Blocks for the sizes, with how many there are at a time, up to that of the largest output."""
    largest = max((Block(output.start, output.nbytes).rounded for output in outputs), default=0)
    sizes: list[int] = []
    total = 0
    for size, count in sorted(most_alive.items()):
        total += size * count
        if size > largest or total > most_bytes:
            break
        sizes += [size] * count
    return Plugs(tuple(sizes))


def _bytes(count: int, device: torch.device) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device=device)

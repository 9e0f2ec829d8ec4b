"""A program on a GPU that is all scratch."""

from __future__ import annotations

from collections.abc import Callable

import torch

MIB = 1 << 20


def temporaries(count: int, mib: int) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """A program with so many temporary tensors at once, and a small result; and its argument, of which each has the size."""

    def program(x: torch.Tensor) -> torch.Tensor:
        made = [x * (number + 2) - number for number in range(count)]
        total = made[0] * 0
        for number, one in enumerate(made):
            total = total * 0.5 + one * (number + 1)
        return total[:8] - 3

    return program, torch.arange(mib * MIB // 4, device="cuda", dtype=torch.float32) / 1e6

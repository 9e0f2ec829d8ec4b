"""Wplus14: random programs over views, writes, duplicates, flags and results are right, or refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.errors import Refusal
from wrap.aot.oracle import numbers, twin

Step = tuple[str, int, int]
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda x: x.t(),
    "slice": lambda x: x[:1],
    "flat": lambda x: x.reshape(-1).view(-1),
    "unsqueeze": lambda x: x.unsqueeze(0),
    "detach": lambda x: x.detach(),
    "self": lambda x: x,
}
MATHS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x * 1.5 + y.sum(),
    "sin": lambda x, y: x.sin(),
    "scale": lambda x, y: y.mean() * x,
}
WRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "mul_": lambda x, y: x.mul_(2),
    "add_": lambda x, y: x.add_(y.detach().mean()),
    "use_": lambda x, y: x.mul_(y.sum()),
    "no_grad": lambda x, y: torch.no_grad()(lambda: x.mul_(3))(),
    "t_": lambda x, y: x.t_() if x.dim() == 2 else x,
}


class Program:
    """A random straight-line program; `arguments` are (kind, needs a gradient)."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        self.arguments = [
            (choose.choice(("plain", "plain", "grown", "slice", "first")), choose.random() < 0.4)
            for _ in range(choose.randint(1, 3))
        ]
        kinds = [*VIEWS, *MATHS] + [*WRITES] * choose.randint(0, 2)
        self.steps = [
            (choose.choice(kinds), choose.randrange(99), choose.randrange(99)) for _ in range(choose.randint(1, 6))
        ]
        self.results = [choose.randrange(99) for _ in range(choose.randint(1, 3))]

    def make(self) -> list[Any]:
        made: list[Any] = []
        for k, (kind, grad) in enumerate(self.arguments):
            fresh = numbers(2, 2) + k
            if kind == "first" and made:
                made.append(made[0])
            elif kind == "slice":
                made.append((torch.cat([fresh, fresh]).requires_grad_(grad) * 1)[1:3])
            else:
                fresh.requires_grad_(grad)
                made.append(fresh * 1 if kind == "grown" else fresh)
        return made

    def __call__(self, *args: Any) -> list[Any]:
        known = list(args)
        for name, one, other in self.steps:
            x, y = known[one % len(known)], known[other % len(known)]
            if name in VIEWS:
                known.append(VIEWS[name](x))
            elif name in MATHS:
                known.append(MATHS[name](x, y))
            else:
                WRITES[name](x, y)
        return [known[-1 - at % len(known)] for at in self.results]

    def __str__(self) -> str:
        return f"{self.arguments} {self.steps} {self.results}"


def outcome(seed: int) -> str:
    """`right`, `refused`, or `invalid` where eager itself raises. A wrong one raises."""
    program = Program(seed)
    try:
        for results in (program(*program.make()),):
            needy = [item for item in results if item.requires_grad]
            if needy:
                sum((item * 2).abs().sum() for item in needy).backward()
    except RuntimeError:
        return "invalid"
    try:
        twin(program, program.make)
    except Refusal as error:
        return f"refused: {error.reason.why[:60]}"
    except Exception as error:
        raise AssertionError(f"program {seed}: {program}") from error
    return "right"


@pytest.mark.parametrize("block", range(8))
def test_Wplus14_random_programs_are_right_or_refused(block: int) -> None:
    found = [outcome(seed) for seed in range(block * 40, block * 40 + 40)]
    valid = [item for item in found if item != "invalid"]
    assert sum(item != "right" for item in valid) <= len(valid) * 0.25, found

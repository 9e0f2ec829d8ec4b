"""Random straight-line programs over views, writes, duplicates, overlaps, flags and results; each is run and judged."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from treeplay.errors import Refusal
from wrap.aot.oracle import numbers, run_backward, twin

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda x: x.t() if x.dim() == 2 else x,
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
    "hidden": lambda x, y: x.detach().add_(1),
    "item": lambda x, y: x[:1].mul_(4),
    "t_": lambda x, y: x.t_() if x.dim() == 2 else x,
}
PLACES = (slice(0, 2), slice(1, 3), slice(2, 4))
KINDS = ("plain", "plain", "grown", "slice", "slice", "first", "sibling", "sibling", "whole", "detached")


class Program:
    """A random program; `arguments` are (kind, needs a gradient, place in a larger tensor)."""

    def __init__(self, seed: int) -> None:
        choose = random.Random(seed)
        self.arguments = [
            (choose.choice(KINDS), choose.random() < 0.4, choose.choice(PLACES)) for _ in range(choose.randint(1, 4))
        ]
        kinds = [*VIEWS, *MATHS] + [*WRITES] * choose.randint(0, 2)
        self.steps = [
            (choose.choice(kinds), choose.randrange(99), choose.randrange(99)) for _ in range(choose.randint(1, 6))
        ]
        self.results = [choose.randrange(99) for _ in range(choose.randint(1, 3))]

    def make(self) -> list[Any]:
        """Fresh arguments. Siblings lie in the memory of the first one, at places of their own."""
        made: list[Any] = []
        whole = numbers(4, 2)
        for k, (kind, grad, place) in enumerate(self.arguments):
            fresh = numbers(2, 2) + k
            if k and kind == "first":
                made.append(made[0])
            elif k and kind == "detached":
                made.append(made[0].detach())
            elif k and kind == "sibling":
                made.append(whole[place])
            elif k and kind == "whole":
                made.append(whole)
            elif kind in ("slice", "sibling", "whole"):
                larger = (torch.cat([fresh, fresh + 9]).requires_grad_(grad)) * 1
                whole = larger if k == 0 else whole
                made.append(larger[place])
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
    """`right`, `refused: why`, or `invalid` where eager itself raises. A wrong one raises."""
    program = Program(seed)
    try:
        args = program.make()
        run_backward([*program(*args), *args])
    except (RuntimeError, IndexError):
        return "invalid"
    try:
        twin(program, program.make)
    except Refusal as error:
        return f"refused: {error.reason.op}: {error.reason.why}"
    except Exception as error:
        raise AssertionError(f"program {seed}: {program}: {type(error).__name__}: {error}") from error
    return "right"

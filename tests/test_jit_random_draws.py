"""Random programs that draw from two generators, read where these stand and put that back: eager's numbers, or a refusal.

Eager tells what is right: what each draw gave, and where both generators stand after each call.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import treeplay
from support import assert_same

pytestmark = pytest.mark.programs

PROGRAMS, CALLS = 60, 3
Step = tuple[Any, ...]
Generator = torch.Generator
Shape = tuple[int, ...]


def strided(shape: Shape) -> torch.Tensor:
    return torch.empty(shape[::-1]).t() if len(shape) == 2 else torch.empty(shape[0] * 2)[::2]


DRAWS: dict[str, Callable[[Shape, float, Generator], torch.Tensor]] = {
    "rand": lambda shape, p, own: torch.rand(shape, generator=own),
    "randn": lambda shape, p, own: torch.randn(shape, generator=own),
    "normal": lambda shape, p, own: torch.empty(shape).normal_(0, p, generator=own),
    "uniform": lambda shape, p, own: torch.empty(shape).uniform_(-p, 1, generator=own),
    "bernoulli": lambda shape, p, own: torch.empty(shape).bernoulli_(p, generator=own),
    "exponential": lambda shape, p, own: torch.empty(shape).exponential_(1 + p, generator=own),
    "strided": lambda shape, p, own: strided(shape).normal_(generator=own),
    "dropout": lambda shape, p, own: F.dropout(torch.ones(shape), p),
    "permutation": lambda shape, p, own: torch.randperm(shape[0] + 3, generator=own),
}


def steps_of(seed: int) -> list[Step]:
    """The steps of one program; many draw a few times, go back, and draw some of that once more."""
    chance = random.Random(seed)
    kinds = chance.sample([*DRAWS], chance.choice([1, 2, 5]))
    shapes = [(3, 4)] if chance.random() < 0.6 else [(3, 4), (4, 3), (0, 2), (17,)]

    def draw(which: int) -> Step:
        return "draw", which, chance.choice(kinds), chance.choice(shapes), chance.choice([0.25, 0.5])

    steps: list[Step] = []
    for _ in range(chance.randint(3, 12)):
        which, name = chance.randint(0, 1), chance.randint(0, 2)
        steps.append(chance.choice([draw(which), draw(which), ("read", which, name), ("put", which, name), ("write",)]))
        if chance.random() < 0.3:
            block = [draw(which) for _ in range(chance.randint(1, 3))]
            again = block[: chance.randint(1, len(block))]
            steps += [("read", which, 3), *block, ("write",), ("read", which, 4), ("put", which, 3), *again]
            steps.append(("put", which, 4))
    return steps


def run(steps: Sequence[Step], generators: Sequence[Generator], x: torch.Tensor) -> list[torch.Tensor]:
    """The program: what it draws, some of which it overwrites, and a number of all that."""
    states: dict[tuple[int, int], torch.Tensor] = {}
    drawn: list[torch.Tensor] = []
    for kind, *given in steps:
        if kind == "read":
            states[given[0], given[1]] = generators[given[0]].get_state()
        elif kind == "put" and tuple(given) in states:
            generators[given[0]].set_state(states[given[0], given[1]])
        elif kind == "write" and drawn:
            drawn[-1].mul_(-2).add_(1)
        elif kind == "draw":
            which, name, shape, p = given
            drawn.append(DRAWS[name](shape, p, generators[which]))
            x = x * 1.25 - drawn[-1].sum()
    return [x, *(tensor.clone() for tensor in drawn)]


def play(program: Callable[[torch.Tensor], Any], generators: Sequence[Generator]) -> list[Any]:
    found = []
    for call, generator in enumerate(generators):
        generator.manual_seed(call)
    for call in range(CALLS):
        found.append((program(torch.ones(2) * call), [generator.get_state() for generator in generators]))
    return found


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_random_programs_draw_what_eager_draws() -> None:
    generators, replayed = [torch.default_generator, torch.Generator()], 0
    for seed in range(PROGRAMS):
        steps = steps_of(seed)

        def program(x: torch.Tensor, steps: Sequence[Step] = steps) -> Any:
            return run(steps, generators, x)

        jitted = treeplay.jit(program, lower="aten")
        assert_same(play(jitted, generators), play(program, generators), f"program {seed}: {steps}")
        replayed += jitted.statistics().replays > 0 and any(kind == "put" for kind, *_ in steps)
    assert replayed > PROGRAMS // 4

"""Random programs of recorded parts against the same program run eagerly, over several steps of training.

inputs ─▶ part 1 ─▶ part 2 ─▶ ...       each part takes any of the values there are and adds its own
             └────────▲
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import nn

from treeplay.graphs import make_graphed_callables

SIZE = 4
Values = list[torch.Tensor]


class Recurrent(nn.Module):
    """Several kernels and views in one part."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(SIZE, SIZE, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x[:, None])[0][:, 0]


class Blend(nn.Module):
    """Two inputs that must not be confused, and three outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(SIZE))

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, Any]:
        mixed = a * self.weight - b
        return {"mixed": mixed, "rest": (mixed.exp().clamp(max=3), a.detach() * 2)}


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.mul_(0.5).sub_(x * 2)
    return y.clamp_(-2, 2)


def subtract(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a * 2 - b.tanh()


def passes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x.flip(0)


PARTS: list[tuple[Callable[[], Callable[..., Any]], int]] = [
    (lambda: nn.Linear(SIZE, SIZE), 1),
    (lambda: nn.BatchNorm1d(SIZE), 1),
    (lambda: nn.Sequential(nn.LayerNorm(SIZE), nn.GELU(), nn.Dropout(0.4)), 1),
    (Recurrent, 1),
    (Blend, 2),
    (lambda: in_place, 1),
    (lambda: subtract, 2),
    (lambda: passes, 1),
]


@dataclass(frozen=True)
class Program:
    """Which parts, what each takes, how they are wrapped, and which values count for the loss."""

    parts: tuple[int, ...]
    takes: tuple[tuple[int, int], ...]
    requires_grad: tuple[bool, ...]
    together: bool
    outputs: str
    weights: tuple[int, ...]

    def make(self) -> list[Callable[..., Any]]:
        return [PARTS[index][0]() for index in self.parts]

    def arguments(self, number: int, values: Values) -> tuple[torch.Tensor, ...]:
        taken = [values[index % len(values)] for index in self.takes[number]]
        return tuple(taken[: PARTS[self.parts[number]][1]])

    def run(self, parts: Sequence[Callable[..., Any]], inputs: Values) -> Values:
        values = list(inputs)
        for number, part in enumerate(parts):
            values += tensors_of(part(*self.arguments(number, values)))
        return values

    def loss(self, values: Values) -> torch.Tensor:
        weights = [self.weights[index % len(self.weights)] for index in range(len(values))]
        return sum((value.sin().sum() * weight for value, weight in zip(values, weights, strict=True)), torch.zeros(()))


def tensors_of(result: Any) -> Values:
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result
    return [tensor for part in parts for tensor in tensors_of(part)]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    count = draw(st.integers(1, 4))
    many = st.tuples(st.integers(0, 30), st.integers(0, 30))
    return Program(
        parts=tuple(draw(st.lists(st.integers(0, len(PARTS) - 1), min_size=count, max_size=count))),
        takes=tuple(draw(st.lists(many, min_size=count, max_size=count))),
        requires_grad=tuple(draw(st.lists(st.booleans(), min_size=1, max_size=3))),
        together=draw(st.booleans()),
        outputs=draw(st.sampled_from(["copy", "alias", "guard"])),
        weights=tuple(draw(st.lists(st.sampled_from([0, 1, 3]), min_size=1, max_size=4))),
    )


def inputs_of(program: Program, dev: str) -> Values:
    return [torch.randn(3, SIZE, device=dev, requires_grad=flag) for flag in program.requires_grad]


def wrap(program: Program, parts: list[Callable[..., Any]], dev: str) -> list[Callable[..., Any]]:
    """Wrap parts that a trial run of copies gave samples for."""
    values = inputs_of(program, dev)
    samples = []
    for number, part in enumerate(copy.deepcopy(parts)):
        given_ = program.arguments(number, values)
        samples.append(tuple(value.detach().clone().requires_grad_(value.requires_grad) for value in given_))
        values += tensors_of(part(*given_))
    if program.together:
        return list(make_graphed_callables(tuple(parts), tuple(samples), num_warmup_iters=1, outputs=program.outputs))
    return [
        make_graphed_callables(part, sample, num_warmup_iters=1, outputs=program.outputs)
        for part, sample in zip(parts, samples, strict=True)
    ]


def step(program: Program, parts: Sequence[Callable[..., Any]], inputs: Values, seed: int) -> Values:
    torch.manual_seed(seed)
    values = program.run(parts, inputs)
    loss = program.loss(values)
    if loss.requires_grad:
        loss.backward()
    found = [value.detach().clone() for value in values]
    with torch.no_grad():
        for part in parts:
            for parameter in part.parameters() if isinstance(part, nn.Module) else ():
                if parameter.grad is not None:
                    parameter -= parameter.grad * 0.1
                    parameter.grad = None
    return found


def compare(dev: str, program: Program) -> None:
    torch.manual_seed(0)
    twins = [part.to(dev) if isinstance(part, nn.Module) else part for part in program.make()]
    parts = wrap(program, copy.deepcopy(twins), dev)
    sets = [inputs_of(program, dev) for _ in range(2)]
    for seed in (0, 1, 0, 2):
        inputs = sets[seed % 2]
        clones = [value.detach().clone().requires_grad_(value.requires_grad) for value in inputs]
        expected = step(program, twins, clones, seed)
        found = step(program, parts, inputs, seed)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        for a, b in zip(inputs, clones, strict=True):
            zero = torch.zeros_like(a)
            gradients = [zero if part.grad is None else part.grad for part in (a, b)]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5, equal_nan=True)
            a.grad = None
        follow(parts, twins)


def follow(parts: Sequence[Callable[..., Any]], twins: Sequence[Callable[..., Any]]) -> None:
    """Compare what a step left, and begin the next one from the twins' state: what rounds otherwise grows with each step."""
    for part, twin in zip(parts, twins, strict=True):
        if isinstance(part, nn.Module) and isinstance(twin, nn.Module):
            for mine, theirs in zip(part.state_dict().values(), twin.state_dict().values(), strict=True):
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
                mine.copy_(theirs)


@pytest.mark.programs
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(program=programs())
@example(  # whose weights come to be NaN in eager too
    Program(
        (2, 7, 4, 7), ((0, 0), (0, 0), (17, 0), (5, 0)), (False, False), together=False, outputs="copy", weights=(3,)
    )
)
def test_random_programs_train_like_eager_on_the_cpu(program: Program) -> None:
    compare("cpu", program)


@pytest.mark.gpu
@settings(max_examples=25, deadline=None)
@given(program=programs())
def test_random_programs_train_like_eager_on_a_gpu(program: Program) -> None:
    compare("cuda", program)

"""Operators that fail on values behind `torch.compile`: the exception is eager's, and so is what was written by then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import assert_same
from support.failing import FAILING, outcome


def compiled(program: Callable[..., Any], inner: str) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(program, backend="treeplay", options={"inner": inner})


def same_failures(program: Callable[..., Any], good: Callable[[], Any], bad: Any, inner: str) -> None:
    """The same results and errors, the same state and, uncompiled, the same random numbers; good calls are good again."""
    sides = []
    values = [good(), good(), bad, good()]
    for run in (program, compiled(program, inner)):
        state, seen = torch.linspace(1.0, 2.0, 4), []
        for seed, value in enumerate(values):
            torch.manual_seed(seed)
            found = outcome(run, state, value)
            seen.append((found if inner == "aten" or isinstance(found, tuple) else None, state.clone(), torch.rand(2)))
        sides.append(seen)
    for call, (ours, eagers) in enumerate(zip(sides[1], sides[0], strict=True)):
        assert_same(ours[1], eagers[1], f"state after call {call}")
        assert isinstance(ours[0], tuple) == isinstance(eagers[0], tuple)
        if isinstance(eagers[0], tuple):
            assert ours[0] == eagers[0]
            torch.testing.assert_close(ours[2], eagers[2])
        elif inner == "aten":
            assert_same(ours, eagers, f"call {call}")
    assert any(isinstance(found, tuple) for found, _, _ in sides[0])


def writing(what: str) -> Callable[..., Any]:
    program, _, _ = FAILING[what]

    def write(state: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        state.mul_(2).add_(torch.rand(4) > 0)
        result: torch.Tensor = program(value)
        state.add_(result.sum() * 0 + 1)
        return result - 1

    return write


@pytest.mark.parametrize("what", ["cholesky", "_assert_async", "bernoulli", "binary_cross_entropy", "embedding"])
def test_operators_raise_what_eager_raises_and_leave_what_it_leaves(what: str) -> None:
    _, good, bad = FAILING[what]
    same_failures(writing(what), good, bad, "aten")


@pytest.mark.soak
@pytest.mark.parametrize("what", sorted(FAILING))
def test_compiled_code_raises_what_eager_raises_and_leaves_what_it_leaves(what: str) -> None:
    _, good, bad = FAILING[what]
    same_failures(writing(what), good, bad, "inductor")


@pytest.mark.soak
def test_compiled_code_checks_what_its_operators_check() -> None:
    """Bernoulli's and binary cross entropy's are checks that Inductor writes no code for."""

    def program(state: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        state.mul_(2)
        return F.binary_cross_entropy(value * 0.5, value) - torch.bernoulli(value).mean()

    same_failures(program, lambda: torch.rand(4), torch.full((4,), 1.5), "inductor")


class Net(nn.Module):
    """Statistics that are written, dropout that is drawn, and an index that may be out of range."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.linear = nn.Embedding(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.norm(self.embedding(tokens)), 0.1)
        return F.cross_entropy(self.linear(hidden), targets)


def test_training_that_fails_leaves_what_eager_leaves() -> None:
    eager = Net()
    net = copy.deepcopy(eager)
    program = compiled(net, "aten")
    good, bad = torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 9])
    for seed, targets in enumerate((good, bad, good)):
        found = []
        for run in (eager, program):
            torch.manual_seed(seed)
            loss = outcome(run, torch.tensor([0, 1, 2, 5]), targets)
            if isinstance(loss, torch.Tensor):
                loss.backward()
            found.append((loss, torch.rand(2)))
        failures = [loss if isinstance(loss, tuple) else None for loss, _ in found]
        assert failures[0] == failures[1] and (failures[0] is not None) == (targets is bad)
        torch.testing.assert_close(found[1][1], found[0][1])
        for ours, eagers in zip(net.state_dict().values(), eager.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, eagers)
        for one, other in zip(net.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad)


def test_an_operator_of_somebodys_own_is_not_called_again() -> None:
    calls = []

    @torch.library.custom_op("treeplay_tests::counted_failing", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.clone()

    counted.register_fake(torch.empty_like)
    run = compiled(lambda x: torch.arange(3.0)[counted(x)], "aten")
    run(torch.tensor([0, 1]))
    before = len(calls)
    assert outcome(run, torch.tensor([0, 7]))[0] is IndexError
    assert len(calls) == before + 1

"""Operators that fail on values: a replay raises what eager raises, and leaves what eager leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import TRACES_STRIDES, assert_same, assert_same_state, jit
from support.failing import FAILING, outcome


@pytest.mark.parametrize("what", FAILING)
def test_a_replay_raises_what_eager_raises(what: str) -> None:
    program, good, bad = FAILING[what]
    jitted = jit(program)
    for value in (good(), good(), good(), bad, good()):
        torch.manual_seed(3)
        expected, after = outcome(program, value), torch.get_rng_state()
        torch.manual_seed(3)
        found = outcome(jitted, value)
        assert_same(found, expected) if isinstance(expected, torch.Tensor) else None
        assert isinstance(expected, torch.Tensor) or found == expected
        assert torch.equal(torch.get_rng_state(), after)
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.refusals, statistics.replays) == (1, 0, 3)


@pytest.mark.parametrize("what", FAILING)
def test_a_program_that_handles_a_failure_goes_on_with_its_recording(what: str) -> None:
    """It was told as an error of treeplay's own, and the second one ended replays."""
    program, good, bad = FAILING[what]
    state = torch.zeros(())

    def handles(value: Any) -> Any:
        state.add_(1)
        try:
            return program(value)
        except Exception:
            return state.mul_(2) - 1
        finally:
            state.sub_(0.5)

    jitted, errors = jit(handles), len(treeplay.observe.internal_errors())
    for value in (good(), good(), bad, good(), bad, good(), bad, good(), good(), good(), good(), good()):
        before, found = state.clone(), []
        for call in (handles, jitted):
            torch.manual_seed(3)
            state.copy_(before)
            found.append((call(value), state.clone(), torch.get_rng_state()))
        assert_same(*found)
    statistics = jitted.statistics()
    assert (statistics.recordings, statistics.refusals, statistics.replays) == (1, 0, 8)
    assert statistics.not_replayed == {"observed": 1, "a replay raised": 3}
    assert len(treeplay.observe.internal_errors()) == errors


def test_a_program_that_handles_failures_in_many_calls_is_left_alone() -> None:
    """Each was replayed, taken back and run."""

    def root(a: torch.Tensor) -> torch.Tensor:
        try:
            return torch.linalg.cholesky(a)  # HERE
        except torch.linalg.LinAlgError:
            return torch.linalg.cholesky(a + 5 * torch.eye(2))

    jitted = jit(root, on_refusal="eager")
    with pytest.warns(
        UserWarning, match="an operator fails on the values of many calls, which the program handles"
    ) as told:
        for k in range(12):
            a = torch.eye(2) * (-1 if k % 2 else 1)
            assert_same(jitted(a), root(a))
    assert len(told) == 1 and "HERE" in str(told[0].message)
    statistics = jitted.statistics()
    assert (statistics.refusals, statistics.not_replayed["a replay raised"]) == (1, 4)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, at: x.index_add_(0, at, torch.ones(3)),
        lambda x, at: x.scatter_add_(0, at, torch.ones(3)),
        lambda x, at: x.index_put_((at,), torch.ones(3), accumulate=True),
    ],
)
def test_what_the_last_operator_wrote_before_it_failed_is_taken_back(write: Callable[..., Any]) -> None:
    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        write(x, at * 2)
        return x.sum()

    jitted = jit(program)
    for at in ([0, 1, 2], [1, 1, 3], [0, 1, 50], [2, 1, 0]):
        mine, theirs = torch.arange(8.0), torch.arange(8.0)
        found, expected = outcome(jitted, mine, torch.tensor(at)), outcome(program, theirs, torch.tensor(at))
        assert_same(mine, theirs)
        assert found == expected
    assert jitted.statistics().replays == 2


@pytest.mark.soak
def test_compiled_code_raises_what_eager_raises() -> None:
    table = torch.randn(5)

    def program(index: torch.Tensor) -> torch.Tensor:
        return table[index] * 2 - 1

    jitted = jit(program, lower="inductor")
    for index in ([1, 2], [3, 4], [0, 9], [2, 0]):
        found, expected = outcome(jitted, torch.tensor(index)), outcome(program, torch.tensor(index))
        assert found == expected if isinstance(expected, tuple) else torch.allclose(found, expected)
    assert jitted.statistics().keys[0].recordings[0].lowering == "inductor"


@pytest.mark.soak
@pytest.mark.parametrize("what", ["bernoulli", "binary_cross_entropy", "normal"])
def test_compiled_code_makes_the_checks_that_a_compiler_leaves_out(what: str) -> None:
    program, good, bad = FAILING[what]
    jitted = jit(program, lower="inductor")
    for value in (good(), good(), bad, good()):
        torch.manual_seed(3)
        found, after = outcome(jitted, value), torch.get_rng_state()
        torch.manual_seed(3)
        expected = outcome(program, value)
        assert isinstance(found, tuple) == isinstance(expected, tuple)
        if isinstance(expected, tuple):
            assert found == expected and torch.equal(torch.get_rng_state(), after)
    assert jitted.statistics().keys[0].recordings[0].lowering == "inductor"


@pytest.mark.soak
def test_a_compiled_step_whose_loss_checks_its_range_leaves_what_eager_leaves() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    twin = copy.deepcopy(net)

    def step_of(net: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
        def step(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy(net(x).sigmoid() * scale, y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    jitted = jit(step_of(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)), lower="auto")
    eager = step_of(twin, torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9))
    for scale in (1.0, 0.5, 0.25, 5.0, 1.0):
        args = torch.randn(8, 3), torch.rand(8, 1), torch.tensor(scale)
        found, expected = outcome(jitted, *args), outcome(eager, *args)
        assert found == expected if isinstance(expected, tuple) else torch.allclose(found, expected, atol=1e-5)
        assert isinstance(expected, tuple) == (scale == 5.0)
        for one, other in zip(net.state_dict().values(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert jitted.statistics().keys[0].recordings[0].lowering == "inductor"


@pytest.mark.parametrize("what", ["cholesky", "_assert_async", "scattered"])
def test_compiled_code_would_not_raise_so_operators_run_as_they_are(what: str) -> None:
    program, good, bad = FAILING[what]
    jitted = jit(program, lower="auto")
    for _ in range(3):
        jitted(good())
    assert outcome(jitted, bad) == outcome(program, bad)
    assert jitted.statistics().keys[0].recordings[0].lowering == "aten"


class Model(nn.Module):
    """Statistics that are written in the forward, and a place that may fail after them."""

    def __init__(self, fail: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.norm, self.linear = nn.Embedding(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 5)
        self.fail = fail
        self.last: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = F.dropout(self.norm(self.embedding(tokens)), 0.1)
        out: torch.Tensor = self.linear(self.fail(hidden, tokens))
        return out


def step_of(model: Model, optimizer: torch.optim.Optimizer) -> Callable[..., torch.Tensor]:
    def step(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens), targets)
        model.last = loss.detach()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _cholesky(hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return hidden @ torch.linalg.cholesky(torch.diag((tokens.float().mean() - 2).expand(4)))


FAILURES: dict[str, tuple[Any, tuple[torch.Tensor, torch.Tensor]]] = {
    "the first index": (lambda hidden, _: hidden, (torch.tensor([1, 2, 9, 3]), torch.tensor([0, 1, 2, 3]))),
    "the last index": (lambda hidden, _: hidden, (torch.tensor([1, 2, 5, 3]), torch.tensor([0, 1, 2, 9]))),
    "a factorization": (_cholesky, (torch.tensor([0, 0, 1, 0]), torch.tensor([0, 1, 2, 3]))),
}


@pytest.mark.parametrize("what", FAILURES)
@pytest.mark.parametrize("lower", ["aten", pytest.param("auto", marks=pytest.mark.soak)])
def test_a_step_that_fails_leaves_what_eager_leaves(what: str, lower: str) -> None:
    fail, bad = FAILURES[what]
    model = Model(fail)
    twin = copy.deepcopy(model)
    optimizers = [torch.optim.Adam(each.parameters(), lr=0.1) for each in (model, twin)]
    jitted, eager = jit(step_of(model, optimizers[0]), lower=lower), step_of(twin, optimizers[1])
    good = torch.tensor([3, 5, 4, 2]), torch.tensor([0, 1, 2, -100])
    for seed, args in enumerate([good, good, good, bad, good]):
        found, states = [], []
        for each in (jitted, eager):
            torch.manual_seed(seed)
            found.append(outcome(each, *args))
            states.append(torch.get_rng_state())
        assert found[0] == found[1] if isinstance(found[1], tuple) else torch.allclose(found[0], found[1], atol=1e-5)
        if lower == "aten":
            assert torch.equal(*states)
            assert_same((model.last,), (twin.last,))
            assert_same_state((model, optimizers[0]), (twin, optimizers[1]))
        for one, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    assert jitted.statistics().replays == 3


def test_what_was_written_before_a_failure_is_written_once() -> None:
    table = torch.randn(3)

    def program(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return x[0] - table[index + 1]

    jitted = jit(program)
    for index in ([0], [1], [1], [5], [0]):
        x, y = torch.ones(2), torch.ones(2)
        expected = outcome(program, x, torch.tensor(index))
        found = outcome(jitted, y, torch.tensor(index))
        assert found == expected if isinstance(expected, tuple) else torch.equal(found, expected)
        assert torch.equal(x, y) and y[0] == 2
    assert jitted.statistics().refusals == 0


@pytest.mark.compile
def test_an_index_that_is_out_of_range_takes_a_compiled_step_back() -> None:
    weight, count = nn.Parameter(torch.arange(5.0)), torch.zeros(())

    def program(index: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        with torch.no_grad():
            weight.add_(0.5)
        return (weight[index] * 3).sum().detach()

    jitted = jit(program, lower="inductor")
    for index in ([1, 2], [3, 4], [0, 1]):
        jitted(torch.tensor(index))
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension 0 with size 5"):
        jitted(torch.tensor([1, 9]))
    assert count == 4 and torch.equal(weight.detach(), torch.arange(5.0) + 2)
    torch.testing.assert_close(jitted(torch.tensor([1, 2])), (torch.arange(5.0) + 2.5)[1:3].sum() * 3)
    assert jitted.statistics().keys[0].recordings[0].lowering == "inductor"


@pytest.mark.parametrize("what", ["cholesky", "embedding", "_assert_async"])
def test_a_differentiable_program_raises_what_eager_raises(what: str) -> None:
    program, good, bad = FAILING[what]
    weight = nn.Parameter(torch.tensor(1.5))
    jitted = jit(lambda x: program(x) * weight)
    for value in (good(), good(), good(), bad, good()):
        expected, found = outcome(lambda x: program(x) * weight, value), outcome(jitted, value)
        if isinstance(expected, tuple):
            assert found == expected
        else:
            assert_same(found, expected)
            gradients = [torch.autograd.grad(result.sum(), weight) for result in (found, expected)]
            if TRACES_STRIDES:
                assert_same(*gradients)
            else:  # that of a transposed factor is summed in another order
                torch.testing.assert_close(*gradients)
    assert jitted.statistics().refusals == 0


@pytest.mark.soak
def test_positions_that_cannot_be_out_of_range_are_scattered_by_compiled_code() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), 1.0) - x

    jitted, x = jit(program, lower="auto"), torch.randn(2, 3)
    for _ in range(2):
        assert torch.equal(jitted(x), program(x))
    assert jitted.statistics().keys[0].recordings[0].lowering == "inductor"

"""Checks that distributions make of their arguments are part of a recording: values that do not pass raise as in eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Distribution, Geometric, MultivariateNormal, Normal

import treeplay
from support import assert_same, jit


@pytest.fixture(autouse=True)
def validation_as_it_was() -> Iterator[None]:
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)  # Dynamo turns it off, for the whole process
    yield
    Distribution.set_default_validate_args(before)


def outcome(program: Any, *args: Any) -> Any:
    try:
        return program(*args)
    except ValueError as error:
        return str(error)


DISTRIBUTIONS: dict[str, Any] = {
    "normal": lambda x, a: Normal(x, x.exp()).log_prob(a),
    "categorical": lambda x, a: Categorical(logits=x).entropy() + Categorical(probs=x.softmax(0)).log_prob(a.long()),
    "geometric": lambda x, a: Geometric(x.sigmoid()).log_prob(a.long()),
    "multivariate": lambda x, a: MultivariateNormal(x, torch.diag(x.exp())).log_prob(a),
}


def with_state(name: str, total: torch.Tensor) -> Any:
    """A program that writes to `total` before and after a distribution."""

    def program(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        total.add_(1)
        out: torch.Tensor = DISTRIBUTIONS[name](x, a).sum()
        total.mul_(2)
        return out

    return program


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_is_recorded_with_its_checks(name: str) -> None:
    total = torch.zeros(())

    recorded, eager, same_total = jit(with_state(name, total)), None, torch.zeros(())
    eager = with_state(name, same_total)
    for call in range(6):
        x, a = torch.randn(2), torch.tensor([1.0, 0.0])
        if call == 3:
            x[1] = torch.nan
        if call == 4 and name != "categorical":
            a[0] = torch.nan if name != "geometric" else -3.0
        assert_same(outcome(recorded, x, a), outcome(eager, x, a))
        assert_same(total, same_total)  # what was written before the check stays written, as in eager
    assert recorded.statistics().recordings == 1


def test_the_loss_of_a_policy_is_differentiated_and_checked() -> None:
    mean, scale = torch.nn.Parameter(torch.randn(4, 3)), torch.nn.Parameter(torch.zeros(3))

    def loss(x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        policy = Normal(x @ mean, scale.exp().expand(5, 3))
        out: torch.Tensor = policy.log_prob(action).sum(-1).mean() - policy.entropy().mean()
        return out

    recorded = jit(loss)
    for _ in range(3):
        given = torch.randn(5, 4), torch.randn(5, 3)
        ours, wanted = (torch.autograd.grad(run(*given), [mean, scale]) for run in (recorded, loss))
        assert_same(ours, wanted)
    assert recorded.statistics().replays == 2
    with torch.no_grad():
        scale[0] = torch.nan
    with pytest.raises(ValueError, match="Expected parameter scale"):
        recorded(*given)


def on_a_gpu(name: str) -> tuple[Any, Any, Any]:
    """A program with state around a distribution, jitted, as it is, and what says how their states differ."""
    totals = [torch.zeros((), device="cuda") for _ in range(2)]

    return jit(with_state(name, totals[0])), with_state(name, totals[1]), lambda: assert_same(*totals)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["normal", "categorical", "geometric"])
def test_on_a_gpu_a_recording_answers_once_for_all_checks(name: str) -> None:
    recorded, eager, compare = on_a_gpu(name)
    for call in range(8):
        x, a = torch.randn(2, device="cuda"), torch.tensor([1.0, 0.0], device="cuda")
        if call == 4:
            x[1] = torch.nan
        if call == 6:
            a[0] = torch.nan if name == "normal" else -3.0
        found, expected = outcome(recorded, x, a), outcome(eager, x, a)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
        compare()  # what was written before the check stays written, as in eager
    made = recorded.statistics()
    assert made.recordings == 1 and made.keys[0].recordings[0].launch.stage == "recorded", recorded.explain()
    assert made.replays >= 4 and made.calls == 8 == made.replays + sum(made.not_replayed.values())


@pytest.mark.gpu
def test_on_a_gpu_calls_are_counted_once_where_what_follows_a_check_cannot_be_captured() -> None:
    """To find the elements of a mask beside other indices, torch reads on the host how many there are."""
    first = torch.zeros(1, dtype=torch.int64, device="cuda")

    def program_with(total: torch.Tensor) -> Any:
        checked = with_state("geometric", total)

        def program(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = checked(x, a)
            return out.new_zeros(2, 2).index_put_((x > 0, first), total) - out

        return program

    totals = [torch.zeros((), device="cuda") for _ in range(2)]
    recorded, eager = jit(program_with(totals[0])), program_with(totals[1])
    for call in range(8):
        x, a = torch.randn(2, device="cuda"), torch.tensor([1.0 if call != 6 else -3.0, 0.0], device="cuda")
        assert str(outcome(recorded, x, a)) == str(outcome(eager, x, a))
        assert_same(*totals)
    made = recorded.statistics()
    assert made.replays == 0 and made.calls == 8 == sum(made.not_replayed.values()), made


@pytest.mark.gpu
def test_on_a_gpu_a_call_that_did_not_pass_draws_once() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return Normal(x, x.exp()).rsample() - Normal(x + 1, x.exp()).log_prob(x)

    recorded, x = jit(program), torch.randn(3, device="cuda")
    bad = x.clone()
    bad[1] = torch.nan
    for call in range(8):
        outcomes = []
        for run in (recorded, program):
            torch.cuda.manual_seed(call)
            outcomes.append((outcome(run, bad if call == 5 else x), torch.rand(2, device="cuda")))
        (found, after), (expected, after_eager) = outcomes
        assert_same(after, after_eager)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
    assert recorded.statistics().keys[0].recordings[0].launch.stage == "recorded"


@pytest.mark.gpu
def test_on_a_gpu_the_advice_for_a_program_that_is_differentiated_works() -> None:
    scale = torch.nn.Parameter(torch.zeros(3, device="cuda"))

    def program(x: torch.Tensor) -> torch.Tensor:
        return Normal(x, scale.exp()).log_prob(x * 2).sum()

    refused, x = jit(program), torch.randn(3, device="cuda")
    refused(x)
    with pytest.raises(treeplay.Refusal, match="validate_args=False"):
        refused(x)
    Distribution.set_default_validate_args(False)
    recorded = jit(program)
    for call in range(4):
        ours, wanted = (torch.autograd.grad(run(x + call), [scale]) for run in (recorded, program))
        torch.testing.assert_close(ours, wanted)
    assert recorded.statistics().keys[-1].recordings[-1].launch.stage == "recorded"

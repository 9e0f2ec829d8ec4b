"""Checks of distributions in a program on a GPU, which a recording answers at its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.distributions import Categorical, Distribution, Normal
from torch.nn import functional as F

import treeplay
from support import call_of
from treeplay.plan import answers
from treeplay.plan.answers import check_can_be_taken_back
from treeplay.plan.devices import settle
from treeplay.trace.jit import trace

META = torch.device("meta")  # stands for a GPU: only names of devices are looked at


@pytest.fixture(autouse=True)
def validation_as_it_was() -> Iterator[None]:
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


def settled(program: Any, *args: torch.Tensor) -> Any:
    return settle(trace(program, call_of(*args)), META)[0]


def operators(traced: Any) -> list[str]:
    return [str(node.target) for node in traced.graph.nodes if node.op == "call_function"]


def test_all_checks_become_one_result() -> None:
    made = settled(lambda x: Normal(x, x.exp()).log_prob(x - 2), torch.ones(3, device=META))
    assert not [name for name in operators(made) if "assert" in name]
    assert operators(made)[-2:] == ["aten.stack.default", "aten.all.default"]
    results = made.graph.output_node().args[0]
    assert made.signature.answer == 1 and made.signature.outputs == len(results) == 2
    assert results[1].meta["spec"].dtype is torch.bool and results[1].meta["spec"].shape == ()


def test_one_check_is_its_own_answer() -> None:
    made = settled(
        lambda x: Normal(x, x.exp(), validate_args=False)._validate_sample(x) or x - 1, torch.ones(3, device=META)
    )
    assert made.signature.answer == 1 and "aten.stack.default" not in operators(made)


def test_indices_behind_a_check_are_part_of_the_answer_and_harmless_where_they_do_not_pass() -> None:
    def program(x: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return Categorical(logits=x).log_prob(action) - x[:, 0]

    made = settled(program, torch.ones(3, 4, device=META), torch.ones(3, dtype=torch.int64, device=META))
    (gather,) = (node for node in made.graph.nodes if str(node.target) == "aten.gather.default")
    assert str(gather.args[2].target) == "aten.where.self"
    stacked = next(node for node in made.graph.nodes if str(node.target) == "aten.stack.default")
    assert gather.args[2].args[0] in stacked.args[0] and len(stacked.args[0]) == 3
    made.graph.lint()


@pytest.mark.parametrize("bad", [None, "logits", "too large", "negative", "class", "class negative"])
def test_the_answer_is_no_where_eager_would_fail_and_everything_runs_all_the_same(bad: str | None) -> None:
    """Run on the CPU, whose kernels raise where those of a GPU would end the process's use of it."""
    from treeplay.plan.answers import with_answer

    def program(x: torch.Tensor, action: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = Categorical(logits=x).log_prob(action).sum() - F.cross_entropy(x, y)
        return loss + F.embedding(y, x).sum() if y.dtype.is_floating_point else loss

    x, action, y = torch.randn(3, 4, device=META), *(torch.ones(3, dtype=torch.int64, device=META) for _ in range(2))
    graph = with_answer(trace(program, call_of(x, action, y)), META).graph
    given = [torch.randn(3, 4), torch.tensor([0, 3, 1]), torch.tensor([2, -100, 0])]
    spoilt = {"logits": (0, (1, 1), torch.nan), "too large": (1, 2, 4), "negative": (1, 0, -1), "class": (2, 0, 4)}
    spoilt["class negative"] = (2, 0, -1)
    if bad is not None:
        at, place, value = spoilt[bad]
        given[at][place] = value
    order = [node.target for node in graph.nodes if node.op == "placeholder"]
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    result, answer = module(*(given[int(str(name).removeprefix("in"))] for name in sorted(order)))
    assert bool(answer) is (bad is None)
    if bad is None:
        torch.testing.assert_close(result, program(*given))


def test_an_operator_behind_a_check_of_which_nothing_is_known_is_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.poisson(Normal(x, x.exp()).log_prob(x).exp())

    with pytest.raises(treeplay.Refusal, match=r"poisson.* may end the use of the GPU"):
        settled(program, torch.ones(3, device=META))


def test_a_step_that_clips_its_gradients_by_their_norm_is_no_danger() -> None:
    state = [torch.ones(3, device=META), torch.ones(2, device=META)]

    def program(x: torch.Tensor) -> torch.Tensor:
        loss = Normal(x, x.exp()).log_prob(x)
        torch._foreach_mul_(state, 0.5)
        return loss / torch.linalg.vector_norm(loss)

    assert settled(program, torch.ones(3, device=META)).signature.answer == 1


def test_an_assertion_of_the_users_behind_a_check_is_a_danger() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        out = Normal(x, x.exp()).log_prob(x)
        torch._assert_async((out < 9).all(), "of the user's")
        return out

    with pytest.raises(treeplay.Refusal, match="_assert_async"):
        settled(program, torch.ones(3, device=META))


def test_an_assertion_of_the_users_stays_one() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "of the user's")
        return x - 1

    made = settled(program, torch.ones(3, device=META))
    assert made.signature.answer is None and "aten._assert_async.msg" in operators(made)


def test_a_program_that_the_caller_differentiates_is_refused_at_its_line() -> None:
    weight = torch.nn.Parameter(torch.ones(3, device=META))
    with pytest.raises(treeplay.Refusal, match="validate_args=False") as caught:
        settled(lambda x: Normal(x, weight.exp()).log_prob(x), torch.ones(3, device=META))
    assert caught.value.reason.where.file == __file__


def test_a_program_that_writes_more_than_a_call_should_copy_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.ones(4, device=META)

    def program(x: torch.Tensor) -> torch.Tensor:
        state.mul_(2)
        return Normal(x, x.exp()).log_prob(x)

    made = settled(program, torch.ones(3, device=META))
    inputs = [torch.ones(item.spec.shape) for item in made.signature.inputs]
    check_can_be_taken_back(made, inputs)
    monkeypatch.setattr(answers, "MOST_BYTES", 15)
    with pytest.raises(treeplay.Refusal, match="too much to be taken back"):
        check_can_be_taken_back(made, inputs)

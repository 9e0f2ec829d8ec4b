"""Facts of tensors: a function mode is told of each question, and the code of a condition asks the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from treeplay.torch_seam.facts import BY_NAME, FACTS, HAS_GRADIENT, Fact, base_among
from treeplay.values.spec import TensorSpec


class Told(TorchFunctionMode):
    """Keeps the facts that it is told of."""

    def __init__(self) -> None:
        super().__init__()
        self.facts: list[Fact] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in FACTS:
            self.facts.append(FACTS[func])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [fact.name for fact in FACTS.values()])
def test_a_mode_is_told_of_each_question(name: str) -> None:
    tensor = torch.ones(3)
    with Told() as told:
        found = getattr(tensor, name)
        if callable(found):
            found()
    assert told.facts == [BY_NAME[name]]


@pytest.mark.parametrize("name", BY_NAME)
def test_the_code_asks_what_the_fact_asks(name: str) -> None:
    kept = torch.ones(3, requires_grad=True)
    kept.grad = torch.ones(3)
    for tensor in (torch.ones(3), torch.ones(4)[1:], kept, (kept * 2).unbind(0)[1]):
        if name != HAS_GRADIENT.name or tensor.is_leaf:
            fact = BY_NAME[name]
            answer: Any = eval(fact.code.format("tensor"))
            assert fact.ask(tensor) == answer and type(fact.ask(tensor)) is type(answer)


def test_a_tensor_without_a_gradient_and_a_parameter_have_one_answer_about_history() -> None:
    history = [fact for fact in FACTS.values() if fact.is_of_history]
    assert {fact.name for fact in history} == {"is_leaf", "grad_fn", "output_nr", "retains_grad"}
    parameter = torch.nn.Parameter(torch.ones(3))
    assert not any(fact.may_differ(tensor) for fact in history for tensor in (torch.ones(3), parameter))
    assert all(fact.may_differ(torch.ones(3, requires_grad=True)) for fact in history)


def test_what_a_tensor_is_a_view_of() -> None:
    one, other = torch.arange(6.0), torch.arange(8.0)
    assert base_among(one, [one, other]) is None
    assert base_among(one[2:], [other, one]) == (1, TensorSpec.of(one))
    assert base_among(one[2:], [other]) == (None, TensorSpec.of(one))

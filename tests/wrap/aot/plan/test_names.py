"""Arguments in messages and in generated code: a user's name is told, and stands in no code, where it could hide another."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treeplay.errors import UsageError
from wrap.aot.oracle import compare, compilers, numbers, twin, wrapped


def plain_compilers() -> Any:
    return compilers(plain=plain_compilers)


def renamed(text: str, name: str) -> Any:
    """The program `text` with its second argument called `name`, which `y` stands for."""
    return eval(text.replace("y", name), {"dropout": torch.nn.functional.dropout})


def in_training() -> list[Any]:
    return [numbers(2, 3, grad=True), numbers(2, 3)]


@pytest.mark.parametrize("name", ["ref", "needs", "states_before", "devices", "past_of", "values", "self", "ctx"])
def test_a_nodes_argument_may_be_called_like_what_its_code_uses(name: str) -> None:
    function = renamed("lambda w, y: [dropout(w.exp() - y, 1e-9)]", name)
    compare(function, wrapped(function, in_training, plain=plain_compilers), in_training)


@pytest.mark.parametrize("name", ["expected", "check_arguments", "waited", "args", "base0", "value0", "result0"])
def test_an_argument_that_is_written_may_be_called_like_what_the_call_uses(name: str) -> None:
    function = renamed("lambda x, y: (y.mul_(2), [y.view(-1), x - y, y[0]])[1]", name)
    twin(function, lambda: [numbers(2, 3), numbers(2, 3)], checked=True)


def test_names_are_told_as_they_are() -> None:
    call = wrapped(lambda x_1, class_: [x_1 - class_], lambda: [numbers(2), numbers(2)], checked=True)
    with pytest.raises(UsageError, match="`class_`"):
        call([numbers(2), None])


def test_arguments_without_names_are_numbered() -> None:
    call = wrapped(lambda *given: [given[0] - given[1]], lambda: [numbers(2), numbers(2)], checked=True)
    with pytest.raises(UsageError, match="`arg1`"):
        call([numbers(2), None])

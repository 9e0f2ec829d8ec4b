"""What Python's builtins get of symbolic numbers: of a trace's as numbers, of a compiler's as they are without one."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from treeplay.trace.numbers.of_builtins import numbers_answer
from treeplay.trace.numbers.scalars import Scalar, scalar_of, symbolic
from treeplay.trace.numbers.world import ScalarWorld
from treeplay.trace.survey.found import Survey


@pytest.fixture
def world() -> ScalarWorld:
    return ScalarWorld(torch.fx.Graph())


@pytest.fixture
def number(world: ScalarWorld) -> Iterator[Any]:
    node = world.graph.placeholder("s0")
    with numbers_answer(Survey(), has_any=True):
        yield symbolic(Scalar(world, text="s0", value=7.0, node=node))


def test_a_comparison_is_a_bool_with_a_guard(number: Any, world: ScalarWorld) -> None:
    assert (number > 5) is True and (number < 5) is False
    assert {str(guard) for guard in world.guards.values()} == {"(s0 > 5.0) is True", "(s0 < 5.0) is False"}


def test_an_integer_beside_a_float_is_compared_as_it_is(number: Any, world: ScalarWorld) -> None:
    many = symbolic(Scalar(world, text="s1", value=2**53 + 1, node=world.graph.placeholder("s1"), integer=True))
    assert (many > 2.0**53) is True and (many == 2.0**53) is False
    assert (number != 2**53 + 1) is True and (many < number) is False
    assert {str(guard) for guard in world.guards.values()} == {
        "(s1 > 9007199254740992.0) is True",
        "(s1 == 9007199254740992.0) is False",
        "(s0 != 9007199254740993) is True",
        "(s1 < s0) is False",
    }


def test_arithmetic_is_followed(number: Any, world: ScalarWorld) -> None:
    found = [scalar_of(each) for each in (*divmod(number, 2), number // 0.1, math.trunc(number))]
    assert [each.value for each in found if each is not None] == [3.0, 1.0, 7.0 // 0.1, 7] and not world.guards


def test_a_method_is_needed_once_it_is_called(number: Any, world: ScalarWorld) -> None:
    assert hasattr(number, "is_integer") and not hasattr(number, "to_bytes") and not hasattr(number, "__dict__")
    assert not world.guards
    assert number.is_integer() is True and "s0" in world.guards


def test_a_number_of_another_thread_s_compiler_is_left_alone(number: Any) -> None:
    other = ShapeEnv().create_unbacked_symint()
    assert isinstance(other + 1 > 3, torch.SymBool) and f"{other}" == str(other)
    assert copy.deepcopy(other) is other and other.node is not None
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(number)

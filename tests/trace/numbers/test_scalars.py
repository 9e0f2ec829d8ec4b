"""Symbolic numbers: arithmetic builds expressions, decisions leave guards."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.errors import Refusal
from treeplay.observe.lines import TORCH
from treeplay.trace.numbers.scalars import Scalar, scalar_of, symbolic
from treeplay.trace.numbers.world import ScalarWorld


@pytest.fixture
def world() -> ScalarWorld:
    return ScalarWorld(torch.fx.Graph())


def number(world: ScalarWorld, value: float = 3.0, text: str | None = "s0") -> Any:
    return symbolic(Scalar(world, text=text, value=value, node=world.graph.placeholder("s0")))


@pytest.mark.parametrize(
    ("make", "text", "value"),
    [
        (lambda s: -s, "(-s0)", -3.0),
        (lambda s: 1 - s, "(1.0 - s0)", -2.0),
        (lambda s: s * 2 + 1, "((s0 * 2.0) + 1.0)", 7.0),
        (lambda s: s / 4, "(s0 / 4.0)", 0.75),
        (lambda s: 2.0**s, "(2.0 ** s0)", 8.0),
        (lambda s: abs(-s), "abs((-s0))", 3.0),
        (lambda s: round(s / 7, 2), "round((s0 / 7.0), 2)", 0.43),
        (lambda s: round(s / 7), "round((s0 / 7.0), None)", 0),
    ],
)
def test_arithmetic_builds_an_expression(world: ScalarWorld, make: Callable[..., Any], text: str, value: float) -> None:
    scalar = scalar_of(make(number(world)))
    assert scalar is not None and (scalar.text, scalar.value) == (text, value)
    assert eval(text, {"s0": 3.0}) == value and not world.guards


@pytest.mark.parametrize(
    ("decide", "guards"),
    [
        (lambda s: bool(s != 0), {"(s0 != 0.0) is True"}),
        (lambda s: bool(s > 5), {"(s0 > 5.0) is False"}),
        (lambda s: bool(s), {"(s0 != 0.0) is True"}),
        (lambda s: not s >= 0.0, {"(s0 >= 0.0) is True"}),
        (lambda s: float(s), {"s0 is 3.0"}),
        (lambda s: s**0.5, {"(s0 >= 0.0) is True"}),
        (lambda s: math.sqrt(s + 1), {"(s0 + 1.0) is 4.0"}),
    ],
)
def test_a_decision_leaves_a_guard(world: ScalarWorld, decide: Callable[..., Any], guards: set[str]) -> None:
    decide(number(world))
    assert {str(guard) for guard in world.guards.values()} == guards


@pytest.mark.parametrize(
    ("compute", "guards"),
    [
        (lambda s: 1 / (s - 3), {"((s0 - 3.0) == 0.0) is True"}),
        (lambda s: s / 0.0, set()),  # as always
        (lambda s: (s - 3) ** -1.0, {"((s0 - 3.0) >= 0.0) is True", "(s0 - 3.0) is 0.0"}),
        (lambda s: 1e200**s, {"s0 is 3.0"}),
        (lambda s: scalar_of(2 - s).computed(math.sqrt), {"(2.0 - s0) is -1.0"}),
    ],
)
def test_numbers_that_cannot_be_computed_with_are_guarded(
    world: ScalarWorld, compute: Callable[..., Any], guards: set[str]
) -> None:
    with pytest.raises((ArithmeticError, ValueError)):
        compute(number(world))
    assert {str(guard) for guard in world.guards.values()} == guards


def test_what_no_replay_computes_is_a_guard_if_python_may_not_be_able_to(world: ScalarWorld) -> None:
    one = number(world)
    _ = 1 / (one - 2), one / 4, one * 3
    assert [str(guard) for guard in world.all_guards(())] == ["((1.0 / (s0 - 2.0))) is not None is True"]
    assert not world.all_guards(["((1.0 / (s0 - 2.0)) + 1.0)"])


def test_a_comparison_that_nobody_decides_on_leaves_none(world: ScalarWorld) -> None:
    _ = number(world) != 0
    assert not world.guards


def test_a_number_of_a_tensor_may_be_computed_with_but_not_decided_on(world: ScalarWorld) -> None:
    value = number(world, text=None)
    made = scalar_of(1 - value * 2)
    assert made is not None and made.text is None
    with pytest.raises(Refusal, match="lives in a tensor"):
        bool(value > 1)


def test_plain_numbers_are_not_symbolic() -> None:
    assert scalar_of(3.0) is None and scalar_of(torch.ones(1)) is None and scalar_of(None) is None


def test_a_symbol_prints_its_expression(world: ScalarWorld) -> None:
    shown: dict[str, Any] = {}
    exec(compile("def shown(value): return str(value)", f"{TORCH}some_file.py", "exec"), shown)
    assert shown["shown"](1 - number(world)) == "<(1.0 - s0)>" and not world.guards


def test_a_program_that_makes_a_text_of_a_symbol_gets_the_number_which_is_guarded(world: ScalarWorld) -> None:
    value = number(world)
    assert f"{1 - value}" == repr(1 - float(value)) and "(1.0 - s0)" in world.guards


def integer(world: ScalarWorld, value: int = 3) -> Any:
    return symbolic(Scalar(world, text="s0", value=value, node=world.graph.placeholder("s0"), integer=True))


def test_the_outcome_of_a_comparison_counts_as_an_integer(world: ScalarWorld) -> None:
    counted = scalar_of(integer(world) + (number(world) > 2.0))
    assert counted is not None and (counted.text, counted.value, counted.cls) == ("(s0 + 1)", 4, int)
    assert {str(guard) for guard in world.guards.values()} == {"(s0 > 2.0) is True"}


def test_what_is_computed_of_constants_alone_is_one(world: ScalarWorld) -> None:
    both = scalar_of((number(world) > 2.0) + (number(world) > 1.0))
    assert both is not None and (both.text, both.node) == ("(1 + 1)", 2)


@pytest.mark.parametrize(
    ("make", "value", "fits", "is_asked"),
    [
        (lambda s: s, 2**63 - 1, True, False),
        (lambda s: s % 7, 2**63 - 1, True, False),
        (lambda s: s + 1, 3, True, True),
        (lambda s: s + 1, 2**63 - 1, False, False),
        (lambda s: s**2, -(2**32), False, False),
        (lambda s: s / 2, 2**63 - 1, True, False),
    ],
)
def test_an_integer_that_may_leave_64_bits_is_asked_for(
    world: ScalarWorld, make: Callable[..., Any], value: int, fits: bool, is_asked: bool
) -> None:
    scalar = scalar_of(make(integer(world, value)))
    assert scalar is not None and scalar.fits is fits
    asked = [guard for guard in world.guards.values() if "<=" in guard.expression]
    assert [guard.expected for guard in asked] == [True] * is_asked

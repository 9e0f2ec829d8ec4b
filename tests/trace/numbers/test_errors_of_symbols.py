"""Which errors a symbol has caused, and which code may have handled one."""

from __future__ import annotations

import contextlib
import decimal
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.trace.numbers.errors_of_symbols import ErrorsOfSymbols, may_have_handled
from treeplay.trace.numbers.scalars import Scalar, given_number, symbolic
from treeplay.trace.numbers.world import ScalarWorld
from treeplay.values.place import How, Place
from treeplay.values.signature import Number


@pytest.fixture
def number() -> Any:
    graph = torch.fx.Graph()
    return symbolic(Scalar(ScalarWorld(graph), text="s0", value=3.0, node=graph.placeholder("s0")))


def refusing(value: Any) -> None:
    raise TypeError(f"what is this? {type(value[0]).__name__}" if isinstance(value, list) else "what is this?")


@pytest.mark.parametrize(
    ("do", "is_any"),
    [
        (lambda number: decimal.Decimal(number), True),
        (lambda number: refusing(number), True),
        (lambda number: refusing(3.0), False),
        (lambda number: {}["a"], False),
    ],
    ids=["told by its class", "told by what was given", "of another value", "another error"],
)
def test_an_error_that_a_symbol_has_caused(number: Any, do: Callable[[Any], Any], is_any: bool) -> None:
    def program() -> None:
        with contextlib.suppress(Exception):
            do(number)

    errors = ErrorsOfSymbols()
    with errors.told():
        program()
    assert errors.is_any == is_any and (errors.where is not None) == is_any


@pytest.mark.parametrize(
    ("do", "suspects"),
    [
        (lambda rate, count: json.dumps(count * 2), ["s1"]),
        (lambda rate, count: {}.get(count), ["s1"]),
        (lambda rate, count: json.dumps(rate / count), ["s0", "s1"]),
        (lambda rate, count: [rate, count, refusing(rate)], ["s0"]),
        (lambda rate, count: refusing([count]), ["s1"]),
        (lambda rate, count: refusing([count == 3]), ["s0", "s1"]),
    ],
    ids=["held", "held by torch", "computed of both", "beside another", "of its class", "not told"],
)
def test_which_number_an_error_may_be_of(do: Callable[[Any, Any], Any], suspects: list[str]) -> None:
    world = ScalarWorld(torch.fx.Graph())
    numbers = [Number(name, Place(How.ITEM, {}, name, None, name), value) for name, value in (("s0", 0.5), ("s1", 3))]
    rate, count = (given_number(world, each.name, each.value, world.graph.placeholder(each.name)) for each in numbers)
    errors = ErrorsOfSymbols()
    try:
        do(rate, count)
    except TypeError as error:
        errors.note(error, error.__traceback__)
    assert [each.name for each in errors.suspects(numbers)] == suspects


def by_class() -> None:
    try:
        refusing(1)
    except (ValueError, TypeError):
        return


def whatever_it_is() -> None:
    try:
        refusing(1)
    except:  # noqa: E722
        return


def suppressing() -> None:
    with contextlib.suppress(TypeError):
        refusing(1)


def another() -> None:
    try:
        refusing(1)
    except KeyError:
        return


def cleaning_up() -> None:
    try:
        refusing(1)
    finally:
        refusing(2)


def in_a_block() -> None:
    with torch.no_grad():
        refusing(1)


@pytest.mark.parametrize("function", [by_class, whatever_it_is, suppressing])
def test_code_that_may_have_handled_one(function: Callable[[], None]) -> None:
    assert may_have_handled({0: function.__code__})


@pytest.mark.parametrize("function", [another, cleaning_up, in_a_block])
def test_code_that_has_handled_none(function: Callable[[], None]) -> None:
    assert not may_have_handled({0: function.__code__})

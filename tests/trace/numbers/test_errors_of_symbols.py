"""Which errors a symbol has caused, and which code may have handled one."""

from __future__ import annotations

import contextlib
import decimal
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.trace.numbers.errors_of_symbols import ErrorsOfSymbols, may_have_handled
from treeplay.trace.numbers.scalars import Scalar, symbolic
from treeplay.trace.numbers.world import ScalarWorld


@pytest.fixture
def number() -> Any:
    graph = torch.fx.Graph()
    return symbolic(Scalar(ScalarWorld(graph), text="s0", value=3.0, node=graph.placeholder("s0")))


def refusing(value: Any) -> None:
    raise TypeError("what is this?")


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

"""How many bits an integer may have that is computed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch.fx

from treeplay.trace.numbers.bits import may_exceed_floats, note_bits, width_of_integer

_LARGEST = 2**63 - 1


def _as_symbols(graph: torch.fx.Graph, fn: Callable[..., Any], *of: Any) -> torch.fx.Node:
    node = graph.call_function(fn, of)
    node.meta["is_integer"] = True
    note_bits(node, fn, of)
    return node


@pytest.mark.parametrize(
    ("fn", "more"),
    [
        (operator.add, (_LARGEST,)),
        (operator.sub, (-_LARGEST,)),
        (operator.mul, (-7,)),
        (operator.pow, (5,)),
        (operator.floordiv, (-1,)),
        (operator.mod, (13,)),
        (operator.neg, ()),
        (abs, ()),
    ],
)
def test_no_integer_has_more_bits_than_it_may(fn: Callable[..., Any], more: tuple[int, ...]) -> None:
    graph = torch.fx.Graph()
    given = graph.placeholder("n")
    given.meta["is_integer"] = True
    may = width_of_integer(_as_symbols(graph, fn, given, *more))
    for value in (-(2**63), -1, 0, 3, _LARGEST):
        assert fn(value, *more).bit_length() <= may


def test_a_float_is_made_of_an_integer_of_few_factors() -> None:
    graph = torch.fx.Graph()
    product = given = graph.placeholder("n")
    given.meta["is_integer"] = True
    for factors in range(2, 20):
        product = _as_symbols(graph, operator.mul, product, given)
        assert may_exceed_floats(product) == (factors > 15)
    assert may_exceed_floats(2**1024) and not may_exceed_floats(2**1000) and not may_exceed_floats(math.inf)
    assert may_exceed_floats(_as_symbols(graph, operator.pow, 2, given))

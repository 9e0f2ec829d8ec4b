"""The text by which a graph is found again: the same in each process, and another one for whatever is compiled otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx

from support import call_of
from support.interpreters import FreshPython
from treeplay.lower.inductor.fingerprint import Indistinct, fingerprint_text, value_text
from treeplay.trace.jit import trace

X = torch.arange(6.0).reshape(2, 3)


def text(program: Callable[..., Any], *arguments: Any) -> str:
    return fingerprint_text(trace(program, call_of(*arguments)).graph)


def plain(x: torch.Tensor) -> torch.Tensor:
    return (x - 2) / 3


def test_names_of_values_and_arguments_are_not_in_it() -> None:
    def other(given: torch.Tensor) -> torch.Tensor:
        less = given - 2
        return less / 3

    assert text(plain, X) == text(other, X.clone())


@pytest.mark.parametrize(
    "other, argument",
    [
        (lambda x: (x - 2) / 3.5, X),
        (lambda x: (x - 2.0) / 3, X),
        (lambda x: (x - 2) * 3, X),
        (lambda x: (2 - x) / 3, X),
        (lambda x: (x - 2).clone() / 3, X),
        (plain, X.double()),
        (plain, X.reshape(3, 2)),
        (plain, X.t().contiguous().t()),
        (lambda x: ((x - 2) / 3, x - 2), X),
    ],
)
def test_what_is_computed_otherwise_has_another_text(other: Callable[..., Any], argument: torch.Tensor) -> None:
    assert text(other, argument) != text(plain, X)


def test_which_values_share_memory_is_in_it() -> None:
    graph = trace(lambda x: (x - 1, x - 1), call_of(X)).graph
    apart = fingerprint_text(graph)
    _, first, second, _ = graph.nodes
    second.meta["storage"] = first.meta["storage"]
    assert fingerprint_text(graph) != apart


def test_another_process_writes_the_same(fresh_python: FreshPython) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import torch\n"
        "from lower.inductor.test_fingerprint import X, plain, text\n"
        "print(text(plain, X))"
    )
    assert fresh_python(code, Path(__file__).parents[2])[0] == text(plain, X)


def test_an_operator_that_is_not_torchs_has_no_text() -> None:
    with torch.library._scoped_library("fingerprints", "DEF") as library:
        library.define("less(Tensor x) -> Tensor")
        graph = torch.fx.Graph()
        graph.output((graph.call_function(torch.ops.fingerprints.less.default, (graph.placeholder("x"),)),))
        with pytest.raises(Indistinct, match=r"fingerprints\.less"):
            fingerprint_text(graph)


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ((1, 2), [1, 2]),
        ("1", 1),
        (("a", "b"), ("a,b",)),
        ({"a": 1}, {"a": 2}),
        (slice(1), slice(0, 1)),
        (torch.float16, torch.bfloat16),
        ((1, 2), (1, (2,))),
    ],
)
def test_values_that_differ_have_texts_that_differ(one: Any, other: Any) -> None:
    assert value_text(one) != value_text(other)


def test_the_order_of_a_set_is_not_in_its_text() -> None:
    assert value_text({"b", "a", "c"}) == value_text({"c", "b", "a"})


@pytest.mark.parametrize(
    "value", [object(), print, torch.ones(2), [object()]], ids=["object", "function", "tensor", "list"]
)
def test_a_value_that_its_text_would_not_tell_apart_is_refused(value: Any) -> None:
    with pytest.raises(Indistinct, match="among its constants"):
        value_text(value)

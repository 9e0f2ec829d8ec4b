"""Graphs of any shape reach the compiler flat, and callers get their own nesting back."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn

from treeplay.backend.shapes import trees
from treeplay.backend.shapes.flat import normalised
from treeplay.errors import UsageError

Pair = namedtuple("Pair", "first second")


class Seen:
    """A compiler that runs the program as it is, and keeps what it was given and what it returned."""

    def __init__(self) -> None:
        self.inputs: list[Sequence[Any]] = []
        self.results: list[Any] = []

    def __call__(self, program: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
        self.inputs.append(inputs)
        assert trees.is_flat(inputs)

        def call(*args: Any) -> Any:
            assert trees.is_flat(args)
            result = program(*args)
            assert type(result) is tuple and trees.is_flat(result)
            self.results.append(result)
            return result

        return call


def through(program: Any, inputs: Any, compile_flat: Any) -> Any:
    normal = normalised(program, inputs)
    return normal.around(compile_flat(normal.program, normal.inputs))


def compiled(function: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    return through(torch.fx.symbolic_trace(function), inputs, Seen())


X, Y = torch.ones(3), torch.full((3,), 3.0)


def test_D4_a_graph_whose_result_is_a_dict_gives_the_dict_back():
    result = compiled(lambda x, y: {"s": x + y, "p": (x * y,)}, X, Y)(X, Y)
    assert type(result) is dict and type(result["p"]) is tuple
    assert result["s"].tolist() == [4, 4, 4] and result["p"][0].tolist() == [3, 3, 3]


def test_D4_a_graph_whose_result_is_one_tensor_gives_a_tensor_back():
    assert compiled(lambda x, y: x - y, X, Y)(X, Y).tolist() == [-2, -2, -2]


def test_D4_the_two_results_of_one_operator_come_back_as_a_pair():
    x = torch.tensor([[1.0, 5.0], [4.0, 2.0]])
    values, indices = compiled(lambda x: torch.max(x, 0), x)(x)
    assert values.tolist() == [4, 5] and indices.tolist() == [1, 0]


def test_D4_an_operator_with_two_results_inside_a_dict():
    x = torch.tensor([[1.0, 5.0], [4.0, 2.0]])
    result = compiled(lambda x: {"top": torch.max(x, 0), "half": torch.split(x, 1)}, x)(x)
    assert result["top"].values.tolist() == [4, 5]
    assert [half.tolist() for half in result["half"]] == [[[1, 5]], [[4, 2]]]


@pytest.mark.parametrize("kind", [list, tuple])
def test_D4_lists_stay_lists_and_tuples_tuples(kind):
    result = compiled(lambda x, y: kind([x - y, kind([x * y])]), X, Y)(X, Y)
    assert type(result) is kind and type(result[1]) is kind


def test_D4_a_flat_tuple_needs_no_step():
    module = torch.fx.symbolic_trace(lambda x, y: (x - y, None, 3))
    run = through(module, [X, Y], lambda program, _: program)
    assert run is module
    assert run(X, Y)[1:] == (None, 3)


def test_D4_a_callable_that_is_no_graph_is_taken_to_return_a_tuple():
    def program(x):
        return (x * 2,)

    assert through(program, [X], lambda program, _: program) is program


class Exported(nn.Module):
    def forward(self, d):
        return {"o": d["a"] * 2}


def test_D5_an_exported_graph_is_called_like_its_module():
    module = torch.export.export(Exported(), ({"a": torch.ones(2)},)).module()
    run = through(module, [{"a": torch.ones(2)}], Seen())
    assert run({"a": 3 * torch.ones(2)})["o"].tolist() == [6, 6]


def test_D5_an_exported_graph_refuses_another_tree():
    module = torch.export.export(Exported(), ({"a": torch.ones(2)},)).module()
    run = through(module, [{"a": torch.ones(2)}], Seen())
    with pytest.raises(UsageError, match=r"'b'"):
        run({"b": torch.ones(2)})


def nested(d, values):
    return d["a"] - values[0] * values[1]


def test_D6_nested_inputs_are_flattened():
    run = compiled(nested, {"a": X}, [Y, X])
    assert run({"a": Y}, [X, Y]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("args", [([X], [Y, X]), ({"a": X, "b": X}, [Y, X]), ({"a": X}, [Y]), ({"a": X}, (Y, X))])
def test_D6_another_tree_at_a_call_is_refused_with_both_shown(args):
    run = compiled(nested, {"a": X}, [Y, X])
    with pytest.raises(UsageError, match=r"expected  \({'a': \*}, \[\*, \*\]\)\n  found"):
        run(*args)


def test_D6_named_tuples_and_nests_in_nests():
    run = compiled(lambda p, x: p[0]["k"][1] - p[1] * x, Pair({"k": [X, Y]}, X), X)
    assert run(Pair({"k": [X, X * 9]}, Y), X).tolist() == [6, 6, 6]


def test_D6_a_container_that_is_used_whole():
    run = compiled(lambda parts: torch.cat(parts), [X, Y])
    assert run([Y, X]).tolist() == [3, 3, 3, 1, 1, 1]


def test_D6_a_container_that_may_be_stolen_is_emptied():
    module = torch.fx.symbolic_trace(lambda parts, x: parts[0] - x)
    next(iter(module.graph.nodes)).meta["steal_arg"] = True
    run = through(module, [[X, Y], X], Seen())
    given, kept = [Y, X], [X]
    assert run(given, kept[0]).tolist() == [2, 2, 2]
    assert given == [] and len(kept) == 1


def test_D6_one_list_and_numbers_are_joined_without_a_tree_walk(monkeypatch):
    run = compiled(lambda parts, n: (parts[0] - parts[1]) * n, [X, Y], 2)
    monkeypatch.setattr(trees, "flatten_tree", None)
    assert run([Y, X], 4).tolist() == [8, 8, 8]


def test_D6_one_list_of_another_length_is_refused():
    run = compiled(lambda parts, n: (parts[0] - parts[1]) * n, [X, Y], 2)
    with pytest.raises(UsageError):
        run([Y], 4)


def test_D6_a_callable_that_is_no_graph_takes_nested_inputs():
    run = through(lambda d: (d["a"] * 2,), [{"a": X}], Seen())
    assert run({"a": Y})[0].tolist() == [6, 6, 6]


def test_D3_nested_inputs_and_a_nested_result():
    run = compiled(lambda d: {"o": [d["a"] - d["b"][0]]}, {"a": X, "b": (Y,)})
    result = run({"a": Y, "b": (X,)})
    assert type(result["o"]) is list and result["o"][0].tolist() == [2, 2, 2]


def test_D3_an_exported_graph_with_both_trees():
    class Both(nn.Module):
        def forward(self, d, x):
            return {"o": (d["a"] - x, [d["b"][0]])}

    inputs = ({"a": X, "b": [Y]}, X.clone())  # the exporter takes one tensor in two places for one
    run = through(torch.export.export(Both(), inputs).module(), inputs, Seen())
    result = run({"a": Y, "b": [Y]}, X)
    assert result["o"][0].tolist() == [2, 2, 2] and result["o"][1][0].tolist() == [3, 3, 3]

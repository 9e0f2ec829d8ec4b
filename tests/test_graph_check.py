"""A graph from which wrong code would be written does not get past the stage that made it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx

import treeplay
from treeplay.errors import InternalError
from treeplay.graph_check import add_placeholder, check_graph, check_module


def difference() -> torch.fx.Graph:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    graph.output((graph.call_function(torch.sub, (a, b)),))
    return graph


def swapped_arguments(graph: torch.fx.Graph) -> None:
    """Torch is content with it, and writes `def forward(self, a, b_1): a_1 = a; ...`."""
    a, b = graph.find_nodes(op="placeholder")
    a.target, b.target = "b", "a"


def argument_taken_by_a_result(graph: torch.fx.Graph) -> None:
    graph.find_nodes(op="placeholder")[0].target = "sub"


def two_of_one_name(graph: torch.fx.Graph) -> None:
    graph.find_nodes(op="call_function", target=torch.sub)[0].name = "a"


def read_before(graph: torch.fx.Graph) -> None:
    graph.find_nodes(op="placeholder")[0].prepend(graph.find_nodes(op="call_function", target=torch.sub)[0])


def no_results(graph: torch.fx.Graph) -> None:
    graph.erase_node(graph.output_node())


def late_argument(graph: torch.fx.Graph) -> None:
    with graph.inserting_before(graph.output_node()):
        graph.placeholder("c")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (swapped_arguments, "b is defined twice"),
        (argument_taken_by_a_result, "sub is defined twice"),
        (two_of_one_name, "a is defined twice"),
        (read_before, "before it is computed"),
        (no_results, "no results"),
        (late_argument, "after something computed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_graph_is_told_with_the_stage_that_broke_it(
    damage: Callable[[torch.fx.Graph], None], told: str
) -> None:
    graph = difference()
    check_graph(graph, "the split")
    damage(graph)
    with pytest.raises(InternalError, match=rf"after the split: .*{told}"):
        check_graph(graph, "the split")


def test_the_token_of_a_backwards_effects_comes_last() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.sin, (x,))
    token = graph.placeholder("tangents_token")
    graph.output((made, token))
    check_graph(graph, "the trace")


def test_an_argument_may_be_taken_by_another_name() -> None:
    graph = difference()
    graph.find_nodes(op="placeholder")[0].target = "L_x_"  # as Dynamo's are
    check_graph(graph, "Dynamo")


def test_bodies_of_branches_are_looked_at_too() -> None:
    graph = difference()
    body = torch.fx.GraphModule({}, graph)
    outer = torch.fx.Graph()
    outer.output((outer.get_attr("body"),))
    module = torch.fx.GraphModule({"body": body}, outer)
    argument_taken_by_a_result(body.graph)
    with pytest.raises(InternalError, match="sub is defined twice"):
        check_module(module, "a pass")


def test_a_new_argument_is_called_as_it_is_taken() -> None:
    graph = difference()
    with graph.inserting_before(graph.find_nodes(op="placeholder")[0]):
        node = add_placeholder(graph, "sub")
    assert node.target == node.name != "sub"
    check_graph(graph, "a pass")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """After what graphs are looked at, in order."""
    import treeplay.backend.wrapped
    import treeplay.lower.inductor.lowering
    import treeplay.record.lowered  # noqa: F401  with all that they import

    told: list[str] = []
    for name, module in list(sys.modules.items()):
        for check in (check_graph, check_module):
            if name.startswith("treeplay.") and getattr(module, check.__name__, None) is check and name != HERE:

                def noting(graph: Any, after: str, check: Any = check) -> None:
                    told.append(after)
                    check(graph, after)

                monkeypatch.setattr(module, check.__name__, noting)
    return told


HERE = "treeplay.graph_check"


def test_jit_looks_at_its_graph_after_each_step(told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from treeplay.lower.inductor import artifact

    def no_compiler(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(artifact, "compile_artifact", no_compiler)

    def each_step(x: torch.Tensor) -> torch.Tensor:
        y = x.sin().t_()
        torch._foreach_sub_([y, y], 2)
        return y

    program = treeplay.jit(each_step, lower="inductor")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program(torch.ones(3))
        program(torch.ones(3))
    assert told[:5] == [
        "the trace",
        "shapes that change in place became views",
        "shared lists were taken apart",
        "it was made functional",
        "results were laid out",
    ]


def test_the_backend_looks_at_its_graphs_after_each_step(told: list[str]) -> None:
    def program(given: Any, w: Any) -> Any:
        return {"y": (given[0] * w).sin() - given[1]}

    from treeplay.torch_compile import compile_graph

    weight = torch.ones(3, requires_grad=True)
    inputs = [[torch.ones(3), torch.ones(3)], weight]
    call = compile_graph(torch.fx.symbolic_trace(program), inputs, inner="aten")
    call(*inputs)["y"].sum().backward()
    assert told == [
        *(
            "its results were made flat",
            "its inputs were made flat",
            "the trace",
            "the backward's writes were taken out",
        ),
        *("the split (forward)", "the split (backward)"),
        *("views were no longer saved (forward)", "views were no longer saved (backward)"),
        *("the passes", "missing gradients were left out", "the passes"),
    ]

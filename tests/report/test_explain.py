"""`treeplay.explain`: each graph of a program, and all that keeps it from being recorded."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.traceback import annotate

import treeplay
from treeplay.torch_compile import backend
from treeplay.values.captured import Role


@pytest.fixture(autouse=True)
def sizes_of_values_are_captured(fresh_dynamo):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        yield


ATEN = {"inner": "aten"}


def test_Dplus1_two_reasons_with_two_lines_in_one_call():
    def program(x):
        x.add_(1)
        with annotate({"treeplay": "unrecorded"}):
            y = x * 2
        return y.nonzero() * 3

    found = treeplay.explain(program, torch.ones(3), options=ATEN)
    (graph,) = found.graphs
    assert (graph.direction, graph.outcome) == ("inference", "skipped")
    assert [skip.name for skip in graph.skips] == ["operator", "annotation"]
    assert [reason.where.source for reason in found.reasons] == ["return y.nonzero() * 3", "y = x * 2"]
    assert [item.name for item in graph.inputs if item.is_written] == ["x"]


def test_Dplus1_the_text_names_operators_lines_and_cures():
    def program(x):
        return x.nonzero() * 3

    text = str(treeplay.explain(program, torch.ones(3), options=ATEN))
    assert "1 graphs, 1 that cannot be recorded" in text
    assert "nonzero: makes a result whose shape depends on values" in text
    assert f"{__file__}:" in text and "fix: " in text


def test_Dplus1_forward_and_backward_of_a_module_without_a_mark_on_its_gradients():
    net = nn.Linear(3, 2)
    found = treeplay.explain(net, torch.ones(4, 3), options=ATEN)
    assert [(graph.direction, graph.outcome) for graph in found.graphs] == [
        ("forward", "compiled"),
        ("backward", "compiled"),
    ]
    assert found.reasons == () and net.weight.grad is None
    assert [item.role for item in found.graphs[0].inputs].count(Role.STATIC) == 2


def test_Dplus1_a_program_that_is_compiled_already():
    net = torch.compile(nn.Linear(3, 2), backend="eager")
    net(torch.ones(4, 3))
    assert len(treeplay.explain(net, torch.ones(4, 3), options=ATEN).graphs) == 2
    run = torch.compile(lambda x: x * 2, backend="eager")
    run(torch.ones(3))
    assert [graph.direction for graph in treeplay.explain(run, torch.ones(3), options=ATEN).graphs] == ["inference"]


def test_Dplus1_the_time_that_stays_unrecorded_is_told():
    def program(x, w):
        y = (x @ w).sin()
        torch._dynamo.graph_break()
        return y.nonzero() * 3

    found = treeplay.explain(program, torch.ones(30, 30), torch.ones(30, 30), options=ATEN)
    first, second = found.graphs
    assert first.seconds_a_call > 0 and second.seconds_a_call > 0 and second.outcome == "skipped"
    assert found.unrecorded_seconds == second.seconds_a_call < found.seconds_a_call
    assert "ms a call are left unrecorded" in str(found) and "ms a call" in first.head


def test_Dplus1_to_take_times_leaves_no_mark():
    def program(x, total):
        total.mul_(2).add_(x)
        return total + torch.rand(3)

    totals = [torch.ones(6)[::2], torch.ones(6)[::2]]
    treeplay.explain(program, torch.ones(3), totals[0], options=ATEN)
    torch.manual_seed(3)
    treeplay.explain(program, torch.ones(3), totals[0], options=ATEN)
    after = torch.rand(3)
    program(torch.ones(3), totals[1])
    torch.manual_seed(3)
    program(torch.ones(3), totals[1])
    assert torch.equal(totals[0], totals[1]) and torch.equal(after, torch.rand(3))


def test_Dplus1_graphs_that_nobody_explains_are_not_timed():
    torch.compile(lambda x: x * 2, backend=backend, options=ATEN)(torch.ones(3))
    assert treeplay.graph_reports()[-1].seconds_a_call is None


def test_Dplus1_each_part_of_a_broken_program():
    def program(x):
        y = x.sin()
        torch._dynamo.graph_break()
        return y * 2

    found = treeplay.explain(program, torch.ones(3), options=ATEN)
    assert [graph.direction for graph in found.graphs] == ["inference", "inference"]
    assert found.graphs[1].graph_id == found.graphs[0].graph_id + 1


def test_Dplus1_a_choice_on_the_host_is_named():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * 5, (x,))

    (graph,) = treeplay.explain(program, torch.ones(3), options=ATEN).graphs
    assert [skip.reason.op for skip in graph.skips] == ["cond"]


def test_Dplus1_the_report_is_always_on():
    run = torch.compile(lambda x: x * 2, backend="treeplay", options=ATEN) if _is_installed() else None
    if run is None:
        pytest.skip("treeplay was installed before it had this entry point")
    run(torch.ones(3))
    assert treeplay.graph_reports()[-1].direction == "inference"


def _is_installed():
    return "treeplay" in torch.compiler.list_backends(exclude_tags=None)


def test_variables_of_torchs_functions_are_not_told_as_the_users() -> None:
    scale = 2.5
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])

    def step(x: torch.Tensor) -> None:
        (weight * x * scale).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    jitted = treeplay.jit(step, lower="aten")
    for _ in range(4):
        jitted(torch.ones(3))
    begin, _, _ = jitted.explain().partition("└─")
    assert "    scale = 2.5" in begin and "has_state_steps" not in begin
    assert "torch.optim.adam.adam.has_state_steps = True" in jitted.statistics().keys[0].recordings[0].guarded


def test_variables_of_the_environment_are_told_after_all_else() -> None:
    scale = 2.5

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * scale - len(dict(os.environ))

    jitted = treeplay.jit(step, lower="aten")
    for _ in range(3):
        jitted(torch.ones(3))
    begin, _, _ = jitted.explain().partition("└─")
    assert begin.index("    scale = 2.5") < begin.index("    environ._data[")


@pytest.mark.parametrize("program", [3, treeplay.jit(lambda x: x - 1), treeplay.jit(torch.nn.Tanh())])
def test_what_it_cannot_explain_is_said_with_what_can(program: Any) -> None:
    expected = (
        "expected a callable or a module, found int" if program == 3 else r"jitted, and `program.explain\(\)` says"
    )
    with pytest.raises(treeplay.ArgumentTypeError, match=expected):
        treeplay.explain(program)


def test_a_module_of_the_users_may_explain_itself_too() -> None:
    class Explains(torch.nn.Module):
        def explain(self) -> str:
            return "by itself"

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 - 1

    assert len(treeplay.explain(Explains(), torch.ones(3), options=ATEN).graphs) == 1
    assert treeplay.check(Explains(), torch.ones(3))

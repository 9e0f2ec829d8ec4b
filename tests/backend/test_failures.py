"""Errors of our own in the backend: the graph runs as it is, and the error is counted, kept and told. Users' own pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import treeplay
from support import assert_same
from support.faults import raising_once, surroundings
from treeplay import driver, torch_compile
from treeplay.backend import job, wrapped
from treeplay.backend.account import graph_reports
from treeplay.backend.recording import examine, replayed
from treeplay.backend.recording.compiled_graph import CompiledGraph
from treeplay.backend.recording.replayed import Replayed
from treeplay.backend.shapes import flat as shapes
from treeplay.device.host import HostDevice
from treeplay.observe import counters, internal_errors
from treeplay.torch_seam import partition

PLACES = {
    "normalised": (shapes, "normalised"),
    "sizes": (driver, "compile_flat"),
    "wrap": (wrapped, "wrap_function"),
    "facts": (examine, "input_facts"),
}
WEIGHT = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)


def program(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 - WEIGHT) / (x * x + 1)


def check(compiled: Any) -> None:
    x = torch.arange(3.0, requires_grad=True)
    (found,) = torch.autograd.grad(compiled(x).pow(2).sum(), x)
    (expected,) = torch.autograd.grad(program(x).pow(2).sum(), x)
    torch.testing.assert_close(found, expected)


def compiled_by(backend_options: dict[str, Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(program, backend=torch_compile.backend, options=backend_options)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [KeyError, RuntimeError])
def test_a_graph_that_cannot_be_compiled_for_an_error_of_ours_runs_as_it_is(
    place: str, kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compiled_by({"inner": "aten"})
    owner, name = PLACES[place]
    monkeypatch.setattr(owner, name, raising_once(kind("told to"), getattr(owner, name)))
    before = surroundings()
    with pytest.warns(UserWarning, match="because of an error of its own"):
        check(compiled)
    assert surroundings() == before
    assert counters["internal errors"] == {kind.__name__: 1} and "fault.py" in internal_errors()[0]
    assert any("an error of its own" in str(skip) for report in graph_reports() for skip in report.skips)
    check(compiled)


def test_a_backward_that_cannot_be_compiled_for_an_error_of_ours_runs_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled = compiled_by({"inner": "aten"})
    x = torch.arange(3.0, requires_grad=True)
    loss = compiled(x).pow(2).sum()
    monkeypatch.setattr(job, "compile_inner", raising_once(KeyError("told to"), job.compile_inner))
    with pytest.warns(UserWarning, match="because of an error of its own"):
        (found,) = torch.autograd.grad(loss, x)
    (expected,) = torch.autograd.grad(program(x).pow(2).sum(), x)
    torch.testing.assert_close(found, expected)
    assert counters["internal errors"] == {"KeyError": 1}
    check(compiled)


def test_an_interrupt_passes_and_a_later_call_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.fx.symbolic_trace(program)
    before = surroundings()
    with monkeypatch.context() as context:
        context.setattr(job, "compile_inner", raising_once(KeyboardInterrupt(), job.compile_inner))
        with pytest.raises(KeyboardInterrupt):
            torch_compile.compile_graph(graph, [torch.ones(3)], inner="aten")
    assert surroundings() == before and not internal_errors()
    call = torch_compile.compile_graph(graph, [torch.ones(3)], inner="aten")
    assert_same(call(torch.ones(3)).detach(), program(torch.ones(3)).detach())


@pytest.mark.parametrize("kind", [KeyError, RuntimeError, ValueError])
@pytest.mark.parametrize("option", ["inner", "partition"])
def test_what_a_users_own_compiler_raises_is_the_users(option: str, kind: type[Exception]) -> None:
    def mine(*_: Any, **__: Any) -> Any:
        raise kind("mine")

    options = {"inner": "aten", option: mine}
    with pytest.raises(kind, match="mine"):
        torch_compile.compile_graph(lambda x: x * 3 - 1, [torch.ones(3, requires_grad=True)], options=options)
    assert not internal_errors()


@pytest.mark.parametrize("name", ["survey_returns", "emit_boxed_call", "load_source"])
def test_an_error_while_a_graph_is_recorded_keeps_the_results_of_the_call(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, reasons = torch.ones(2), []

    def run(args: list[Any]) -> list[Any]:
        (x,) = args
        args.clear()
        total.mul_(2).add_(x)
        return [total - x]

    one = Replayed(CompiledGraph(run, "graph", ("x",)), HostDevice(), lambda: None, reasons.append)
    monkeypatch.setattr(replayed, name, raising_once(KeyError("told to"), getattr(replayed, name)))
    with pytest.warns(UserWarning, match="because of an error of its own"):
        assert_same(one([torch.ones(2)])[0], torch.full((2,), 2.0))
    assert_same(one([torch.ones(2)])[0], torch.full((2,), 6.0))
    assert len(reasons) == 1 and counters["internal errors"] == {"KeyError": 1}


def test_an_error_of_treeplays_own_split_is_not_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a program that the caller differentiates: it runs eagerly."""
    monkeypatch.setattr(partition, "default_partition", raising_once(TypeError("told to"), partition.default_partition))
    weight = torch.ones(3, requires_grad=True)
    jitted = treeplay.jit(lambda x: x * weight - 1, lower="aten")
    with pytest.warns(UserWarning, match="TypeError"):
        for _ in range(3):
            assert_same(jitted(torch.ones(3)).detach(), torch.zeros(3))
    assert counters["internal errors"] == {"TypeError": 1}

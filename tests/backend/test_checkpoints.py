"""Checkpoints in a graph that is called as it is: the backward draws again what the forward drew, as eager's does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from treeplay.backend.checkpoints import with_real_checkpoints
from treeplay.observe import counters
from treeplay.settings import settings
from treeplay.torch_compile import backend

pytestmark = [
    pytest.mark.filterwarnings("ignore:treeplay runs a graph uncompiled"),
    pytest.mark.filterwarnings("ignore:a graph of torch.compile"),
]

overlapping = torch.zeros(4, 8)


def noisy(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x * 3 - 1, 0.5).sin()


def refused() -> None:
    """What treeplay refuses: the graph around it runs as it is."""
    overlapping.as_strided((4, 2), (1, 1)).add_(1)


def of_matrices(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


selective = functools.partial(create_selective_checkpoint_contexts, of_matrices)


def whole(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(noisy, x, use_reentrant=False)


def nested(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: noisy(whole(x) - 0.5), x, use_reentrant=False)


def several(x: torch.Tensor) -> torch.Tensor:
    first, second = checkpoint(lambda x, y: (noisy(x), noisy(y) - x), x, x * 2, use_reentrant=False)
    return first - second * 2


def with_contexts(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda x: noisy(x.sin() @ x.T - 1), x, use_reentrant=False, context_fn=selective)


def drawing_anew(x: torch.Tensor) -> torch.Tensor:
    return checkpoint(noisy, x, use_reentrant=False, preserve_rng_state=False)


class Tripled(torch.autograd.Function):
    """Twice its argument, with three times the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 3


def with_custom_function(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = checkpoint(lambda x: Tripled.apply(noisy(x)) - x, x, use_reentrant=False)
    return result


def told(run: Callable[[torch.Tensor], torch.Tensor], rows: int = 4) -> list[torch.Tensor]:
    """The result, the gradient, and what is drawn next after the forward and after the backward."""
    torch.manual_seed(rows)
    x = torch.linspace(-1, 2, rows * 8).reshape(rows, 8).requires_grad_()
    result = run(x)
    drawn = torch.rand(3)
    (gradient,) = torch.autograd.grad((result * result.detach().cos()).sum(), x)
    return [result.detach(), drawn, gradient, torch.rand(3)]


def compiled(program: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    run: Callable[..., Any] = torch.compile(program, backend=backend, options={"inner": "aten"}, **keywords)
    return run


def check(run: Callable[..., Any], program: Callable[..., Any], rows: int = 4) -> None:
    torch.testing.assert_close(told(run, rows), told(program, rows), rtol=0, atol=0)


DRAWING_AGAIN = (whole, nested, several, with_contexts, with_custom_function)
PROGRAMS = pytest.mark.parametrize("program", [*DRAWING_AGAIN, drawing_anew])


@PROGRAMS
def test_beside_what_is_refused(program: Callable[..., torch.Tensor]) -> None:
    def both(x: torch.Tensor) -> torch.Tensor:
        refused()
        return program(x)

    check(compiled(both), program)


@pytest.mark.parametrize("program", DRAWING_AGAIN)  # compiled for the first sizes, the other would draw once
def test_with_sizes_beyond_the_budget_for_compiling(
    program: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "compile_budget", 0.0)
    run = compiled(program)
    before = counters["sizes"]["over the compile budget"]
    for rows in range(3, 9):
        check(run, program, rows)
    assert counters["sizes"]["over the compile budget"] > before


@PROGRAMS
def test_where_treeplay_is_switched_off(program: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "enabled", False)
    check(compiled(program), program)


def test_a_graph_stays_as_it_is() -> None:
    graph = captured(nested)
    called = with_real_checkpoints(graph)
    assert isinstance(called, torch.fx.GraphModule)
    assert [len([*filter(calls_torchs, module.modules())]) for module in (graph, called)] == [2, 0]


def test_a_graph_without_checkpoints_is_not_copied() -> None:
    graph = captured(noisy)
    assert with_real_checkpoints(graph) is graph


def calls_torchs(part: torch.nn.Module) -> bool:
    target = torch.ops.higher_order.tag_activation_checkpoint
    return isinstance(part, torch.fx.GraphModule) and bool(part.graph.find_nodes(op="call_function", target=target))


def captured(program: Callable[..., Any]) -> torch.fx.GraphModule:
    found: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(graph)
        return graph

    torch.compile(program, backend=keep)(torch.ones(4, 8))
    return found[0]

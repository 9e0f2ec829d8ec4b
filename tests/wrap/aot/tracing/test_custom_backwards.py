"""For which gradients and inputs what a custom function's backward calls runs."""

from __future__ import annotations

from typing import Any

import torch

from support.gradients import GivesNone
from treeplay.wrap.aot.tracing.capture import captured


class Draws(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient - torch.rand(3)


def test_a_custom_backward_runs_for_results_and_inputs_by_autograds_graph() -> None:
    def program(x: torch.Tensor, constant: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [constant / y, Draws.apply(x - constant) / y, Draws.apply(y)]  # type: ignore[no-untyped-call]

    inputs = [torch.ones(3, requires_grad=True), torch.ones(3), torch.ones(3, requires_grad=True)]
    with captured(program, inputs, None) as (traced, _):
        drawn = traced.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.rand.default)
        found = {(tuple(node.meta["runs_for"].results), tuple(node.meta["runs_for"].inputs)) for node in drawn}
    assert found == {((1,), (0,)), ((2,), (2,))}


def test_results_and_written_inputs_lead_to_inputs_without_a_gradient_too() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        z.sub_(x)
        return [GivesNone.apply(x) - y, z / 2, y, y.detach() / 3]  # type: ignore[no-untyped-call]

    inputs = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), torch.ones(3)]
    with captured(program, inputs, None) as (_, seen):
        assert seen.leads_to == {(None, 0): {0, 1}, (None, 1): {0}, (2, None): {0}}


def test_a_custom_backward_behind_others_runs_for_what_leads_to_them_too() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> list[torch.Tensor]:
        first = Draws.apply(x - y)  # type: ignore[no-untyped-call]
        z.mul_(first)
        second = Draws.apply(first / y)  # type: ignore[no-untyped-call]
        return [second - x, y / 2, first]

    inputs = [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True), torch.ones(3)]
    with captured(program, inputs, None) as (traced, _):
        drawn = traced.graph.graph.find_nodes(op="call_function", target=torch.ops.aten.rand.default)
        marks = [node.meta["runs_for"] for node in drawn]
    found = {(tuple(sorted(mark.results)), tuple(mark.written), tuple(sorted(mark.inputs))) for mark in marks}
    assert found == {((0, 2), (2,), (0, 1)), ((0,), (), (0, 1))}

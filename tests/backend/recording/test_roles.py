"""Inputs are told apart by what Dynamo and the trace noted of them, or by their number."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from support.compiled import compiled
from treeplay.backend.account import graph_reports
from treeplay.backend.recording.roles import check_saved_come_first
from treeplay.errors import InternalError
from treeplay.torch_compile import compile_graph
from treeplay.values.captured import Role


def newest(direction):
    return [report for report in graph_reports() if report.direction == direction][-1]


def roles(report):
    return [item.role for item in report.inputs]


@pytest.mark.parametrize(
    "names",
    [
        ["add", "mm", "sin", "tangents_1"],
        ["primals_1", "tangents_1", "bwd_seed_0", "bwd_base_offset_0"],
        ["tangents_1", "tangents_2"],
        ["add", "mm"],
        [],
    ],
)
def test_D20_saved_tensors_come_first(names):
    check_saved_come_first(names)


@pytest.mark.parametrize("names", [["tangents_1", "add"], ["mm", "tangents_1", "bwd_seed_0", "add", "sin"]])
def test_D20_a_saved_tensor_after_a_gradient_is_named(names):
    with pytest.raises(InternalError, match="`add`"):
        check_saved_come_first(names)


def test_D21_parameters_stay_and_the_users_tensor_does_not():
    net, x = nn.Linear(4, 2), torch.randn(3, 4)
    run = compiled(net)
    out = run(x)
    forward = newest("forward")
    assert [(item.name.split("_")[-1], item.role) for item in forward.inputs if item.role is Role.STATIC] == [
        ("weight", Role.STATIC),
        ("bias", Role.STATIC),
    ]
    assert sorted(role.value for role in roles(forward)) == ["ordinary", "static", "static"]
    out.square().sum().backward()
    assert newest("backward").inputs[-1].role is Role.ORDINARY  # the gradient that comes in


def test_D21_a_tensor_that_the_user_marked_stays():
    x, y = torch.randn(3), torch.randn(3)
    torch._dynamo.mark_static_address(y)
    run = compiled(lambda x, y: x * 2 + y)
    run(x, y)
    assert [(item.name, item.role) for item in newest("inference").inputs] == [
        ("x", Role.ORDINARY),
        ("y", Role.STATIC),
    ]


def test_D21_what_the_forward_computed_and_saved_is_ours():
    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(2, 3)
    run = compiled(lambda x, w: torch.sin(x @ w).cos())
    run(x, w).sum().backward()
    found = {item.name: item.role for item in newest("backward").inputs}
    assert found.pop("tangents_1") is Role.ORDINARY
    # The product is ours. Of the transposed x only a view was saved, which lies where the user's x does.
    assert sorted(role.value for role in found.values()) == ["managed", "ordinary"]


def test_D21_a_number_is_plain():
    from treeplay.backend.recording.roles import argument_roles

    assert argument_roles(None, [torch.ones(2), 3, None]) == (Role.ORDINARY, Role.PLAIN, Role.PLAIN)


def test_D21_tensors_of_the_graph_itself_are_lifted_before_the_users():
    net, x = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval(), torch.randn(4, 3)
    run = compile_graph(torch.fx.symbolic_trace(net), [x], inner="aten")
    with torch.no_grad():
        torch.testing.assert_close(run(x), net(x))
        net[0].weight.mul_(3)  # an argument of the graph, not a constant in it
        torch.testing.assert_close(run(x), net(x))
    report = newest("forward")
    assert roles(report)[0] is Role.STATIC and report.inputs[0].name == "0.weight"
    assert roles(report)[-1] is Role.ORDINARY

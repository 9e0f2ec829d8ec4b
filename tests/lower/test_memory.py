"""A functional graph after no-ops were left out of it: values that would lie in another's memory get their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from treeplay.lower.functional import fresh
from treeplay.lower.memory import groups_of, keep_apart

Tensor = torch.Tensor
aten = torch.ops.aten


def graph_of(program: Callable[..., Any], count: int) -> torch.fx.GraphModule:
    """A functional graph that ends in copies, without its no-ops."""
    with FakeTensorMode():
        fakes = [torch.empty(3, 3) for _ in range(count)]
        functional = torch.func.functionalize(lambda *args: program(*args) or [], remove="mutations")
        module = make_fx(functional, tracing_mode="real")(*fakes)
    groups = groups_of(module)
    for node in module.graph.find_nodes(op="call_function", target=aten.clone.default):
        node.replace_all_uses_with(node.args[0])
        module.graph.erase_node(node)
    keep_apart(module.graph, groups)
    module.graph.lint()
    module.recompile()
    return module


def exchange(x: Tensor, y: Tensor) -> None:
    before = x.clone()
    x.copy_(y)
    y.copy_(before)


def rotate(x: Tensor, y: Tensor, z: Tensor) -> None:
    before = x.clone()
    x.copy_(y.t())
    y.copy_(z)
    z.copy_(before.t())


def turn(x: Tensor) -> None:
    x.copy_(x.t().clone())


def keep_and_write(x: Tensor, y: Tensor) -> list[Tensor]:
    before = x.clone()
    x.copy_(y * 2 - 1)
    return [before, before.t()]


def results(x: Tensor) -> list[Tensor]:
    made = x * 2 - 1
    return [made, made.clone(), made.t().clone(), x.clone(), x[1:].clone()]


@pytest.mark.parametrize("program", [exchange, rotate, turn, keep_and_write, results])
def test_values_are_those_of_the_program_and_share_no_memory(program: Callable[..., Any]) -> None:
    count = program.__code__.co_argcount
    mine = [torch.randn(3, 3) for _ in range(count)]
    theirs = [tensor.clone() for tensor in mine]
    found, expected = graph_of(program, count)(*mine), program(*theirs) or []
    assert all(map(torch.equal, [*found, *mine], [*expected, *theirs]))
    assert [_memory(tensor, found, mine) for tensor in found] == [_memory(t, expected, theirs) for t in expected]


def _memory(tensor: Tensor, results: list[Tensor], given: list[Tensor]) -> int:
    storages = [other.untyped_storage()._cdata for other in (*given, *results)]
    return storages.index(tensor.untyped_storage()._cdata)


def test_what_needs_no_copy_gets_none() -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        x.copy_(y)
        y.copy_(y * 2 - 1)
        made = x + y
        return [made, made.t(), y[1:]]

    assert not graph_of(program, 2).graph.find_nodes(op="call_function", target=fresh)

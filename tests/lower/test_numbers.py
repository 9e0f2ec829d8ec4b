"""Numbers of a graph: what is computed on the host, and what the compiled graph reads."""

from __future__ import annotations

import math
import operator

import torch
import torch.fx

from treeplay.lower.numbers import Vector, split_numbers
from treeplay.values.spec import TensorSpec


def graph_with(*steps):
    """A graph over numbers s0, s1 and a tensor in0; each step is (name, target, args by name)."""
    graph = torch.fx.Graph()
    nodes = {name: graph.placeholder(name) for name in ("s0", "s1", "in0")}
    nodes["in0"].meta["spec"] = TensorSpec.of(torch.zeros(()))
    for name, target, arguments in steps:
        nodes[name] = graph.call_function(
            target, tuple(nodes.get(a, a) if isinstance(a, str) else a for a in arguments)
        )
    graph.output((nodes[steps[-1][0]],))
    return graph, nodes


def test_known_expressions_become_slots_and_equal_ones_share_a_slot():
    graph, nodes = graph_with(
        ("a", operator.sub, (1.0, "s1")),
        ("b", operator.sub, (1.0, "s1")),
        ("c", torch.ops.aten.mul.Tensor, ("in0", "a")),
        ("d", torch.ops.aten.mul.Tensor, ("c", "b")),
    )
    numbers = split_numbers(graph)
    assert numbers.size == 1
    assert numbers.slots == {nodes["a"]: 0, nodes["b"]: 0}
    assert numbers.compute((0.5, 0.75)) == [0.25]


def test_numbers_of_tensors_stay_in_the_graph():
    graph, nodes = graph_with(
        ("step", torch.ops.aten._local_scalar_dense.default, ("in0",)),
        ("power", operator.pow, ("s1", "step")),
        ("out", torch.ops.aten.mul.Tensor, ("in0", "power")),
    )
    numbers = split_numbers(graph)
    assert nodes["power"] in numbers.scalars
    assert nodes["power"] not in numbers.known
    assert numbers.compute((0.5, 0.75)) == [0.75]


def test_expressions_keep_the_order_of_operations():
    graph, _ = graph_with(
        ("a", operator.mul, ("s0", "s1")),
        ("b", operator.neg, ("a",)),
        ("c", operator.truediv, (2.0, "b")),
        ("out", torch.ops.aten.add.Tensor, ("in0", "c")),
    )
    assert split_numbers(graph).compute((3.0, 5.0)) == [2.0 / -(3.0 * 5.0)]


def test_a_zero_of_another_sign_is_another_number():
    graph, _ = graph_with(("out", torch.ops.aten.mul.Tensor, ("in0", "s0")))
    vector = Vector(split_numbers(graph), torch.device("cpu"))
    for value in (0.5, 0.0, -0.0, -0.0, 0.0):
        vector.fill((value, 2.0))
        assert math.copysign(1.0, vector.tensor[0].item()) == math.copysign(1.0, value)

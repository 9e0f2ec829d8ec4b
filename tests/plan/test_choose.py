"""Which lowering, and whether more than one thread: pure decisions, every case."""

from __future__ import annotations

import pytest
import torch
import torch.fx

from treeplay.plan.choose import choose
from treeplay.plan.work import is_small
from treeplay.values.spec import TensorSpec


@pytest.mark.parametrize(
    ("facts", "lowerings", "why"),
    [
        ({"wanted": "aten", "compiler": "g++"}, ("aten",), "asked for"),
        ({"wanted": "inductor", "compiler": None}, ("inductor",), "asked for"),
        ({"wanted": "inductor", "compiler": "g++", "shared": [(0, 1)]}, ("aten",), "share memory"),
        ({"wanted": "auto", "compiler": "g++"}, ("inductor", "aten"), "compiled with g++"),
        ({"wanted": "auto", "compiler": None}, ("aten",), "there is no compiler"),
        ({"wanted": "auto", "compiler": "g++", "shared": [(0, 1)]}, ("aten",), "share memory"),
        ({"wanted": "auto", "compiler": "g++", "is_folded": True}, ("aten",), "overlaps itself"),
    ],
)
def test_the_lowering_follows_from_the_facts(facts, lowerings, why):
    plan = choose(**facts)
    assert plan.lowerings == lowerings
    assert why in str(plan)


def product_of(m: int, k: int, n: int) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    a, b = graph.placeholder("in0"), graph.placeholder("in1")
    out = graph.call_function(torch.ops.aten.mm.default, (a, b))
    for node, shape in ((a, (m, k)), (b, (k, n)), (out, (m, n))):
        node.meta["spec"] = TensorSpec.of(torch.empty(shape, device="meta"))
    graph.output((out,))
    return graph


@pytest.mark.parametrize(
    ("shape", "expected"), [((16, 64, 64), True), ((64, 90, 90), True), ((90, 90, 90), False), ((1, 9000, 1), False)]
)
def test_a_program_is_small_if_no_operator_is_worth_a_second_thread(shape, expected):
    assert is_small(product_of(*shape)) is expected

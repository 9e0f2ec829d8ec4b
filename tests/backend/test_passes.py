"""Passes run on a graph and on the child graphs of its control flow, and a broken one is named."""

from __future__ import annotations

import pytest
import torch
import torch.fx
from torch.fx.experimental.proxy_tensor import make_fx

from treeplay.backend.passes import children, copy_of, run_after_autograd, run_before_autograd, run_joint
from treeplay.errors import UsageError


def inner(x):
    return torch.cond(x.sum() > 3, lambda x: x.sin(), lambda x: x * 5, (x,))


def program(x):
    return (torch.cond(x.sum() > 0, inner, lambda x: x - 7, (x,)),)


def nested() -> torch.fx.GraphModule:
    return make_fx(program, tracing_mode="fake")(torch.ones(3))


def sines_to_cosines(module, *_):
    for node in module.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default


def delete_a_used_node(module, *_):
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    module.graph.erase_node(node)


def text(module: torch.fx.GraphModule) -> str:
    return str(module.graph)


def test_D10_inner_branches_come_before_outer_ones_each_once():
    seen = []
    run_joint(nested(), [torch.ones(3)], [lambda module: seen.append(text(module))])
    assert len(seen) == 5 and len(set(seen)) == 5
    assert "sin" in seen[0] and "mul" in seen[1]  # the branches of the inner cond
    assert "cond" in seen[2] and "sub" in seen[3]  # the branches of the outer one
    assert "cond" in seen[4]


@pytest.mark.parametrize("scale", [2.0, 0.5, -1.0])
def test_D10_a_rewritten_child_runs_in_place_of_the_old(scale):
    module = run_before_autograd(nested(), [torch.ones(3)], [sines_to_cosines])
    x = torch.full((3,), scale)
    wanted = x.cos() if x.sum() > 3 else x * 5 if x.sum() > 0 else x - 7
    assert torch.equal(module(x)[0], wanted)


def test_D10_a_child_that_a_pass_replaced_is_put_back():
    def replace(module, inputs):
        twin = copy_of(module)
        sines_to_cosines(twin)
        return twin

    module = run_before_autograd(nested(), [torch.ones(3)], [replace])
    x = torch.full((3,), 2.0)
    assert torch.equal(module(x)[0], x.cos())


def test_D10_child_graphs_come_without_inputs():
    seen = []
    inputs = [torch.ones(3)]
    run_before_autograd(nested(), inputs, [lambda module, given: seen.append(given)])
    assert seen[:-1] == [None] * 4 and seen[-1] is inputs


def test_D10_a_child_that_nothing_refers_to_is_left_alone():
    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    module.add_module("unused", torch.fx.symbolic_trace(lambda x: (x * 2,)))
    seen = []
    run_after_autograd(module, [torch.ones(3)], [lambda module, _: seen.append(module)], is_inference=True)
    assert seen == [module] and list(children(module)) == []


def test_D9_a_pass_that_breaks_the_graph_is_named():
    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with pytest.raises(UsageError, match=r"the pass .*delete_a_used_node \(before autograd\)"):
        run_before_autograd(module, [torch.ones(3)], [delete_a_used_node])


def test_D9_a_pass_that_leaves_a_dangling_node_is_named():
    def dangle(module):
        other = torch.fx.Graph()
        module.graph.output_node().args = ((other.placeholder("y"),),)

    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with pytest.raises(UsageError, match=r"dangle \(on the joint graph\)"):
        run_joint(module, [torch.ones(3)], [dangle])


def test_D9_a_pass_that_returns_no_graph_is_named():
    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    with pytest.raises(UsageError, match="it returned int"):
        run_before_autograd(module, [torch.ones(3)], [lambda module, inputs: 3])


def test_D11_shapes_are_derived_anew_after_passes():
    def square(module, is_inference):
        add = next(node for node in module.graph.nodes if node.op == "call_function")
        with module.graph.inserting_after(add):
            module.graph.output_node().args = ((module.graph.call_function(torch.matmul, (add, add)),),)

    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    run_after_autograd(module, [torch.ones(3, 3)], [square], is_inference=True)
    assert next(node for node in module.graph.nodes if node.target is torch.matmul).meta["val"].shape == (3, 3)

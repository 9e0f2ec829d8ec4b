"""What nodes yield is derived anew without data."""

from __future__ import annotations

import pytest
import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.backend.metadata import refresh, taking_real_tensors, values_of


def square_inserted() -> tuple[torch.fx.GraphModule, torch.fx.Node]:
    module = torch.fx.symbolic_trace(lambda x: (x + 1,))
    add = next(node for node in module.graph.nodes if node.op == "call_function")
    with module.graph.inserting_after(add):
        square = module.graph.call_function(torch.matmul, (add, add))
    module.graph.output_node().args = ((square,),)
    module.recompile()
    return module, square


def test_D11_a_node_that_a_pass_inserted_is_described():
    module, square = square_inserted()
    mode = refresh(module, [torch.ones(3, 3)])
    assert square.meta["val"].shape == (3, 3)
    assert mode.allow_non_fake_inputs
    assert all("val" in node.meta for node in module.graph.nodes if node.op != "output")


def test_D11_the_mode_of_the_inputs_is_used():
    mode = FakeTensorMode()
    module, _ = square_inserted()
    assert refresh(module, [mode.from_tensor(torch.ones(3, 3))]) is mode
    assert not mode.allow_non_fake_inputs


def test_D11_nothing_is_recorded_by_autograd():
    module, square = square_inserted()
    refresh(module, [torch.ones(3, 3, requires_grad=True)])
    assert not square.meta["val"].requires_grad


def test_D11_real_tensors_are_taken_for_one_run_also_after_an_error():
    mode = FakeTensorMode()
    with pytest.raises(ZeroDivisionError), taking_real_tensors(mode):
        assert mode.allow_non_fake_inputs
        raise ZeroDivisionError
    assert not mode.allow_non_fake_inputs


def test_values_of_nodes_leave_no_notes():
    module, square = square_inserted()
    assert values_of(module, [torch.ones(2, 2)], [square])[square].shape == (2, 2)
    assert "val" not in square.meta

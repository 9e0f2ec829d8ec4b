"""The private parts of torch behind the backend exist and behave."""

from __future__ import annotations

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.backend import torch_private
from wrap.aot.pairs import pair


def test_the_fake_mode_of_values():
    mode = FakeTensorMode()
    assert torch_private.fake_mode_of([1, None, mode.from_tensor(torch.ones(2))]) is mode
    assert torch_private.fake_mode_of([torch.ones(2)]) is None


def test_autocast_is_off_for_a_block():
    with torch.autocast("cpu", torch.bfloat16):
        with torch_private.without_autocast():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_states_of_generators_are_stored_for_a_block():
    config = torch._functorch.config
    assert config.graphsafe_rng_functionalization
    with torch_private.stored_random_states():
        assert not config.graphsafe_rng_functionalization
    assert config.graphsafe_rng_functionalization


def test_what_operators_return():
    assert torch_private.schema_returns(torch.ops.aten.max.dim) == 2
    assert torch_private.schema_returns(torch.ops.aten.add.Tensor) == 1
    assert torch_private.schema_returns(torch.max) is None


def test_trees_of_an_exporter_are_found_and_dropped():
    class Module(torch.nn.Module):
        def forward(self, d):
            return {"o": d["a"] * 2}

    graph = torch.export.export(Module(), ({"a": torch.ones(2)},)).module().graph
    trees = torch_private.exporter_trees(graph)
    assert trees is not None and trees[1].num_leaves == 1
    torch_private.drop_exporter_trees(graph)
    assert torch_private.exporter_trees(graph) is None


def test_wrappers_are_told_apart():
    assert torch_private.is_wrapper(pair(2))
    assert not torch_private.is_wrapper(torch.ones(2)) and not torch_private.is_wrapper(3)

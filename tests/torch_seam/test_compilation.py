"""The private parts of torch behind the backend exist and behave."""

from __future__ import annotations

import torch
import torch.fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.backend.inner import _report
from treeplay.torch_seam import dynamo, fakes, flags, fx, modes, operators, partition
from wrap.aot.pairs import pair


def test_the_fake_mode_of_values():
    mode = FakeTensorMode()
    assert fakes.fake_mode_of([1, None, mode.from_tensor(torch.ones(2))]) is mode
    assert fakes.fake_mode_of([torch.ones(2)]) is None


def test_autocast_is_off_for_a_block():
    with torch.autocast("cpu", torch.bfloat16):
        with flags.without_autocast():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_states_of_generators_are_stored_for_a_block():
    config = torch._functorch.config
    assert config.graphsafe_rng_functionalization
    with partition.stored_random_states():
        assert not config.graphsafe_rng_functionalization
    assert config.graphsafe_rng_functionalization


def test_what_operators_return():
    assert operators.schema_returns(torch.ops.aten.max.dim) == 2
    assert operators.schema_returns(torch.ops.aten.add.Tensor) == 1
    assert operators.schema_returns(torch.max) is None


def test_trees_of_an_exporter_are_found_and_dropped():
    class Module(torch.nn.Module):
        def forward(self, d):
            return {"o": d["a"] * 2}

    graph = torch.export.export(Module(), ({"a": torch.ones(2)},)).module().graph
    trees = fx.exporter_trees(graph)
    assert trees is not None and trees[1].num_leaves == 1
    fx.drop_exporter_trees(graph)
    assert fx.exporter_trees(graph) is None


def test_strides_are_reported_only_where_they_are_asked_for():
    _report([(1,)])
    context = TracingContext(None)
    with tracing(context):
        _report([(1,)])
        assert context.output_strides is None
        context.output_strides = []
        _report([(3, 1), None])
    assert context.output_strides == [(3, 1), None]


def test_the_lock_of_compiles_can_be_taken_twice():
    import torch._dynamo.convert_frame as frames

    with dynamo.compile_lock(), dynamo.compile_lock():
        assert dynamo.compile_lock() is frames.compile_lock


def test_a_new_fake_mode_has_what_inductors_cache_asks_for():
    mode = fakes.new_fake_mode()
    fake = mode.from_tensor(torch.ones(2, 3), static_shapes=True)
    assert mode.shape_env is not None and all(type(size) is int for size in fake.shape)
    assert fakes.is_real(torch.ones(2)) and not fakes.is_real(fake) and not fakes.is_real(3)


def test_dynamo_marks_what_stays_where_it_is():
    seen = []

    def look(gm, inputs):
        nodes = gm.graph.find_nodes(op="placeholder")
        seen.extend((node.meta.get("tensor_dict") or {}).get("_dynamo_static_input_type") for node in nodes)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(torch.nn.Linear(3, 2), backend=look)(torch.ones(4, 3))
    assert sorted(mark is not None for mark in seen) == [False, True, True]


def test_wrappers_are_told_apart():
    assert modes.is_wrapper(pair(2))
    assert not modes.is_wrapper(torch.ones(2)) and not modes.is_wrapper(3)


def test_a_joint_graph_can_be_split_without_computing_twice():
    joint = torch.fx.Graph()
    x, tangent = joint.placeholder("primals_1"), joint.placeholder("tangents_1")
    doubled = joint.call_function(torch.ops.aten.sin.default, (x,))
    slope = joint.call_function(torch.ops.aten.mul.Tensor, (tangent, x))
    joint.output([doubled, slope])
    mode = FakeTensorMode()
    for node in joint.nodes:
        node.meta["val"] = mode.from_tensor(torch.ones(2))
    forward, backward = partition.keep_all(
        torch.fx.GraphModule(torch.nn.Module(), joint), ([x.meta["val"]], [tangent.meta["val"]]),
        num_fwd_outputs=1, static_lifetime_input_indices=[],
    )  # fmt: skip
    assert len(forward.graph.output_node().args[0]) == 2
    assert len(backward.graph.find_nodes(op="placeholder")) == 2


def test_the_functions_by_which_graphs_change_modes() -> None:
    mode = flags.ENTER_INFERENCE(True)
    assert torch.is_inference_mode_enabled()
    flags.EXIT_INFERENCE(mode)
    assert not torch.is_inference_mode_enabled()
    flags.set_grad_enabled(True)
    assert torch.is_grad_enabled()

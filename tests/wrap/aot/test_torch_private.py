"""The private parts of torch that the wrap stage for traced functions uses exist and behave."""

from __future__ import annotations

import torch

from treeplay.wrap.aot import torch_private
from wrap.aot.oracle import numbers


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, x.view(-1)]


def test_tracing_gives_a_graph_and_the_facts() -> None:
    with torch_private.traced(Doubled(), [numbers(2, 3)], None) as traced:
        assert not traced.is_joint
        assert [info.output_type.name for info in traced.facts.output_info] == ["non_alias", "alias_of_input"]
        sequence = traced.facts.output_info[1].view_meta_sequence.sequence
    x = numbers(2, 3)
    view = torch_private.apply_views(x, sequence)
    assert view._base is x and view.shape == (6,)


def test_tracing_gives_a_joint_graph_where_gradients_are_needed() -> None:
    with torch_private.traced(Doubled(), [numbers(2, 3, grad=True)], None) as traced:
        assert traced.is_joint
        primals, tangents = traced.inputs
        assert (len(primals), len(tangents)) == (1, 1)


def test_modes_are_read_and_set() -> None:
    assert not torch_private.is_any_autocast_enabled()
    with torch.autocast("cpu"):
        assert torch_private.is_any_autocast_enabled()
        assert not torch_private.without_autocast(torch_private.is_any_autocast_enabled)
    torch_private.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    torch_private.set_grad_enabled(True)


def test_shared_storage_is_seen() -> None:
    x = numbers(4)
    assert torch_private.shares_storage(x[:1], x[2:])
    assert not torch_private.shares_storage(x, x.clone())


def test_a_version_is_preserved() -> None:
    x = numbers(2, 3)
    with torch_private.preserving_version(x):
        x.t_()
    assert x._version == 0 and x.shape == (3, 2)


def test_the_tracing_context_comes_back() -> None:
    context = torch._guards.TracingContext(torch._subclasses.FakeTensorMode())
    with torch._guards.tracing(context):
        again = torch_private.keep_tracing_context()
    with again():
        assert torch._guards.TracingContext.try_get() is context
    with torch_private.keep_tracing_context()():
        assert torch._guards.TracingContext.try_get() is None


def test_wrapper_subclasses_are_told_apart() -> None:
    assert not torch_private.is_wrapper(numbers(2))
    assert not torch_private.is_wrapper(torch.nn.Parameter(numbers(2)))
    assert not torch_private.is_wrapper(3)


def test_the_fake_mode_of_values_is_found() -> None:
    mode = torch._subclasses.FakeTensorMode()
    assert torch_private.fake_mode_of([3, mode.from_tensor(numbers(2))]) is mode
    assert torch_private.fake_mode_of([3, numbers(2)]) is None


def test_hooks_on_saved_tensors_and_kept_graphs_are_seen() -> None:
    assert torch_private.saving_hooks(True) is None
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert torch_private.saving_hooks(True) is not None
    kept: list[bool] = []
    x = numbers(2, grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda gradient: kept.append(torch_private.keeps_graph()))
    y.backward(retain_graph=True)
    y.backward()
    assert kept == [True, False]


def test_writes_can_be_traced_inside() -> None:
    class Written(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            x.mul_(2)
            return [x + 1]

    for inside in (False, True):
        with torch_private.traced(Written(), [numbers(2)], None, writes_inside=inside) as traced:
            assert ("copy_" in str(traced.graph.graph)) == inside
            assert list(traced.facts.mutated_inp_runtime_indices) == ([] if inside else [0])

"""The private parts of torch that the wrap stage for traced functions uses exist and behave."""

from __future__ import annotations

import pytest
import torch

from treeplay.wrap.aot import torch_private
from wrap.aot.oracle import numbers
from wrap.aot.pairs import pair


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


def test_facts_about_tensors_made_of_others_are_given() -> None:
    with torch_private.traced(Doubled(), [pair(2, 3)], None) as traced:
        assert traced.subclasses is not None
        assert [len(meta.attrs) for meta in traced.facts.subclass_inp_meta] == [2]
    with torch_private.traced(Doubled(), [numbers(2, 3)], None) as traced:
        assert traced.subclasses is None
    assert torch_private.is_wrapper(pair(2))


def test_a_tensor_on_its_way_is_waited_for() -> None:
    collectives = pytest.importorskip("torch.distributed._functional_collectives")
    x = numbers(2)
    assert torch_private.waited(x) is x
    arrived = torch_private.waited(collectives.AsyncCollectiveTensor(x))
    assert type(arrived) is torch.Tensor and torch.equal(arrived, x)


def test_more_modes_are_read() -> None:
    assert not torch_private.is_view_replay_enabled()
    torch_private.set_view_replay(True)
    assert torch_private.is_view_replay_enabled()
    torch_private.set_view_replay(False)
    assert not torch_private.is_deterministic()
    torch.use_deterministic_algorithms(True)
    assert torch_private.is_deterministic()
    torch.use_deterministic_algorithms(False)
    assert not torch_private.is_transformed()
    seen = []
    torch.func.vmap(lambda x: (seen.append(torch_private.is_transformed()), x)[1])(numbers(2))
    assert seen == [True]


def test_fakes_first_is_asked_for_by_the_tracing_context() -> None:
    assert not torch_private.wants_fakes_first()
    context = torch._guards.TracingContext(torch._subclasses.FakeTensorMode())
    with torch._guards.tracing(context):
        assert not torch_private.wants_fakes_first()
        context.fakify_first_call = True
        assert torch_private.wants_fakes_first()


def test_compiled_autograd_is_seen() -> None:
    assert not torch_private.is_autograd_compiled()
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert torch_private.is_autograd_compiled()
    with torch._dynamo.compiled_autograd._enable(lambda module: module):
        assert torch_private.is_autograd_compiled()


def test_random_states_are_drawn_again_by_operators_of_torch() -> None:
    save, again = (getattr(torch.ops.higher_order, name) for name in ("run_and_save_rng_state", "run_with_rng_state"))
    state, drawn = save(torch.ops.aten.rand.default, [3], device="cpu")
    torch.rand(5)
    before = torch.get_rng_state()
    assert torch.equal(again(state, torch.ops.aten.rand.default, [3], device="cpu"), drawn)
    assert torch.equal(torch.get_rng_state(), before)

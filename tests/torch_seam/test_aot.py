"""The private parts of torch that the wrap stage for traced functions uses exist and behave."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.traceback import preserve_node_meta

from treeplay.observe.lines import location_in
from treeplay.torch_seam import aot, autograd, fakes, flags, fx, modes, tensors
from treeplay.torch_seam import context as torch_context
from treeplay.wrap.aot.tracing.capture import captured
from wrap.aot.oracle import numbers
from wrap.aot.pairs import pair


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x * 2, x.view(-1)]


def test_tracing_gives_a_graph_and_the_facts() -> None:
    with aot.traced(Doubled(), [numbers(2, 3)], None) as traced:
        assert not traced.is_joint
        assert [info.output_type.name for info in traced.facts.output_info] == ["non_alias", "alias_of_input"]
        sequence = traced.facts.output_info[1].view_meta_sequence.sequence
    x = numbers(2, 3)
    view = fakes.apply_views(x, sequence)
    assert view._base is x and view.shape == (6,)


def test_the_code_of_a_traced_graph_is_generated_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    generated, python_code = [], torch.fx.Graph.python_code
    monkeypatch.setattr(
        torch.fx.Graph,
        "python_code",
        lambda graph, *args, **named: generated.append(graph) or python_code(graph, *args, **named),
    )
    x = numbers(2, 3)
    with aot.traced(Doubled(), [x], None) as traced:
        traced.graph.recompile()
        assert not generated
    doubled, _ = traced.graph(x)
    assert generated and torch.equal(doubled, x * 2)


def test_tracing_gives_a_joint_graph_where_gradients_are_needed() -> None:
    with aot.traced(Doubled(), [numbers(2, 3, grad=True)], None) as traced:
        assert traced.is_joint
        primals, tangents = traced.inputs
        assert (len(primals), len(tangents)) == (1, 1)


def test_a_trace_knows_which_shapes_changed_in_place_and_by_which_steps() -> None:
    found: list[object] = []

    class Turned(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
            x.t_()
            x.mul_(2)
            found[:] = [fakes.is_reshaped(x), fakes.is_reshaped(y), fakes.view_steps(x)]
            return [x * y]

    with aot.traced(Turned(), [numbers(2, 3), numbers(3, 2)], None):
        is_turned, is_other_turned, steps = found
    assert is_turned and not is_other_turned
    whole = numbers(4, 6)[2:, ::2]
    view = fakes.apply_views(whole, steps)
    assert (view.size(), view.stride(), view.storage_offset()) == ((3, 2), (2, 6), 12)
    assert fakes.view_steps(whole) is None and not fakes.is_reshaped(whole)


def test_a_trace_refuses_to_reshape_what_is_made_of_other_tensors() -> None:
    class Turned(torch.nn.Module):
        def forward(self, x: Any) -> list[torch.Tensor]:
            x.t_()
            return [x * 2 - 1]

    with pytest.raises(RuntimeError, match="Metadata mutations"), aot.traced(Turned(), [pair(2, 3)], None):
        pass


def test_modes_are_read_and_set() -> None:
    assert not flags.is_any_autocast_enabled()
    with torch.autocast("cpu"):
        assert flags.is_any_autocast_enabled()
        with flags.without_autocast():
            assert not flags.is_any_autocast_enabled()
    flags.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    flags.set_grad_enabled(True)


def test_shared_storage_is_seen() -> None:
    x = numbers(4)
    assert tensors.shares_storage(x[:1], x[2:])
    assert not tensors.shares_storage(x, x.clone())


def test_a_version_is_preserved() -> None:
    x = numbers(2, 3)
    with autograd.preserving_version(x):
        x.t_()
    assert x._version == 0 and x.shape == (3, 2)


def test_the_tracing_context_comes_back() -> None:
    context = torch._guards.TracingContext(torch._subclasses.FakeTensorMode())
    with torch._guards.tracing(context):
        again = torch_context.keep_tracing_context()
    with again():
        assert torch._guards.TracingContext.try_get() is context
    with torch_context.keep_tracing_context()():
        assert torch._guards.TracingContext.try_get() is None


def test_wrapper_subclasses_are_told_apart() -> None:
    assert not modes.is_wrapper(numbers(2))
    assert not modes.is_wrapper(torch.nn.Parameter(numbers(2)))
    assert not modes.is_wrapper(3)


def test_the_line_of_a_node_is_known_while_it_is_run() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(location_in(fx.stack_of_current_node()))
        return x

    graph = torch.fx.Graph()
    node = graph.call_function(look, (graph.placeholder("x"),))
    graph.output(node)
    node.meta["stack_trace"] = f'  File "{__file__}", line 7, in step\n    x.sin()\n'
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with preserve_node_meta():
        torch.fx.Interpreter(module).run(numbers(2))
    torch.fx.Interpreter(module).run(numbers(2))
    assert [place and (place.file, place.line, place.function) for place in seen] == [(__file__, 7, "step"), None]


def test_a_trace_without_gradients_writes_arguments_in_the_graph() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.add_(1) * 2]

    def shaping(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.add_(1).t_() * 2]

    for function, inside in ((program, True), (shaping, False)):
        with captured(function, [numbers(2, 3)], None) as (traced, _):
            assert [aot.is_written_by_graph(info) for info in traced.facts.input_info] == [inside]
    with captured(program, [numbers(2, 3).requires_grad_() * 1], None) as (traced, _):
        assert not aot.is_written_by_graph(traced.facts.input_info[0])


def test_what_is_made_is_as_fake_as_another_tensor() -> None:
    fake = torch._subclasses.FakeTensorMode().from_tensor(numbers(2))
    with fakes.mode_of_fake(fake):
        assert type(torch.empty(3)) is type(fake)
    with fakes.mode_of_fake(numbers(2)):
        assert type(torch.empty(3)) is torch.Tensor


def test_the_fake_mode_of_values_is_found() -> None:
    mode = torch._subclasses.FakeTensorMode()
    assert fakes.fake_mode_of([3, mode.from_tensor(numbers(2))]) is mode
    assert fakes.fake_mode_of([3, numbers(2)]) is None


def test_autograd_tells_that_it_gives_a_leaf_its_gradient() -> None:
    x, found = torch.ones(2, requires_grad=True), [autograd.is_accumulating()]
    y = x * 2
    y.register_hook(lambda _: found.append(autograd.is_accumulating()))
    x.register_post_accumulate_grad_hook(lambda _: found.append(autograd.is_accumulating()))
    y.sum().backward()
    assert [*found, autograd.is_accumulating()] == [False, False, True, False]


def test_hooks_on_saved_tensors_and_kept_graphs_are_seen() -> None:
    assert autograd.saving_hooks(True) is None
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert autograd.saving_hooks(True) is not None
    kept: list[bool] = []
    x = numbers(2, grad=True)
    y = (x * 2).sum()
    x.register_hook(lambda gradient: kept.append(autograd.keeps_graph()))
    y.backward(retain_graph=True)
    y.backward()
    assert kept == [True, False]


def test_writes_can_be_traced_inside() -> None:
    class Written(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            x.mul_(2)
            return [x + 1]

    for inside in (False, True):
        with aot.traced(Written(), [numbers(2)], None, writes_inside=inside) as traced:
            assert ("copy_" in str(traced.graph.graph)) == inside
            assert list(traced.facts.mutated_inp_runtime_indices) == ([] if inside else [0])


def test_facts_about_tensors_made_of_others_are_given() -> None:
    with aot.traced(Doubled(), [pair(2, 3)], None) as traced:
        assert traced.subclasses is not None
        assert [len(meta.attrs) for meta in traced.facts.subclass_inp_meta] == [2]
    with aot.traced(Doubled(), [numbers(2, 3)], None) as traced:
        assert traced.subclasses is None
    assert modes.is_wrapper(pair(2))


def test_a_tensor_on_its_way_is_waited_for() -> None:
    collectives = pytest.importorskip("torch.distributed._functional_collectives")
    x = numbers(2)
    assert fakes.waited(x) is x
    arrived = fakes.waited(collectives.AsyncCollectiveTensor(x))
    assert type(arrived) is torch.Tensor and torch.equal(arrived, x)


def test_more_modes_are_read() -> None:
    assert not flags.is_view_replay_enabled()
    flags.set_view_replay(True)
    assert flags.is_view_replay_enabled()
    flags.set_view_replay(False)
    assert not flags.is_deterministic()
    torch.use_deterministic_algorithms(True)
    assert flags.is_deterministic()
    torch.use_deterministic_algorithms(False)
    assert not modes.is_transformed()
    seen = []
    torch.func.vmap(lambda x: (seen.append(modes.is_transformed()), x)[1])(numbers(2))
    assert seen == [True]


def test_fakes_first_is_asked_for_by_the_tracing_context() -> None:
    assert not torch_context.wants_fakes_first()
    context = torch._guards.TracingContext(torch._subclasses.FakeTensorMode())
    with torch._guards.tracing(context):
        assert not torch_context.wants_fakes_first()
        context.fakify_first_call = True
        assert torch_context.wants_fakes_first()


def test_a_node_gets_its_gradients_in_a_list_but_from_compiled_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(vars(aot.GeneratedFunction)["boxed_grads_call"]) is bool  # no code runs when torch asks
    given: list[type] = []

    class Doubling(aot.GeneratedFunction):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
            given.append(type(gradients[0]))
            (gradient,) = gradients[0] if type(gradients[0]) is list else gradients
            return gradient * 2

    monkeypatch.setattr(aot.GeneratedFunction, "boxed_grads_call", aot.GRADIENTS_COME_IN_A_LIST)
    x = numbers(3, grad=True)
    aot.apply_of(Doubling)(x).sum().backward()
    before = aot.apply_of(Doubling)(x)
    with torch._dynamo.compiled_autograd._enable(lambda module: module):
        before.sum().backward()
    assert list not in given[1:]
    aot.apply_of(Doubling)(x).sum().backward()
    assert given[0] is (list if aot.GRADIENTS_COME_IN_A_LIST else torch.Tensor)
    assert x.grad.tolist() == [6.0] * 3 and given[-1] is torch.Tensor


def test_no_guess_is_made_about_gradients_of_written_arguments() -> None:
    assert hasattr(torch._functorch.config, aot._GUESSES_ZEROS)


def test_compiled_autograd_is_seen() -> None:
    assert not aot.is_autograd_compiled()
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert aot.is_autograd_compiled()
    with torch._dynamo.compiled_autograd._enable(lambda module: module):
        assert aot.is_autograd_compiled()


def test_random_states_are_drawn_again_by_operators_of_torch() -> None:
    save, again = (getattr(torch.ops.higher_order, name) for name in ("run_and_save_rng_state", "run_with_rng_state"))
    state, drawn = save(torch.ops.aten.rand.default, [3], device="cpu")
    torch.rand(5)
    before = torch.get_rng_state()
    assert torch.equal(again(state, torch.ops.aten.rand.default, [3], device="cpu"), drawn)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_backward_knows_whether_it_retains_the_graph() -> None:
    seen: list[bool] = []

    class Asks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            seen.append(autograd.keeps_graph())
            return grad * 2

    result = Asks.apply(torch.ones(1, requires_grad=True))
    result.backward(retain_graph=True)
    result.backward()
    assert seen == [True, False]


def test_apply_without_the_look_at_each_argument_is_apply() -> None:
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return gradient * 2

    x = numbers(3, grad=True)
    y = aot.apply_of(Doubling)(x)
    y.sum().backward()
    assert type(y.grad_fn).__name__ == "DoublingBackward" and x.grad.tolist() == [2.0] * 3

"""What goes on around a call and its backward: modes, transforms, hooks, context variables, compiled autograd."""

from __future__ import annotations

import threading
import warnings
from contextvars import ContextVar
from typing import Any

import pytest
import torch

from treeplay.errors import InternalError, Refusal, UsageError
from treeplay.torch_seam import flags
from treeplay.wrap.aot import wrap_function
from treeplay.wrap.aot.calls.surroundings import run_in_callers_context
from wrap.aot.oracle import alike, boxed, compilers, device, min_cut, numbers, wrapped

VARIABLE: ContextVar[int] = ContextVar("variable", default=0)


def product(x: Any, w: Any) -> Any:
    return [(x * w).sin()]


def two() -> list[Any]:
    return [numbers(2, 3, grad=True), numbers(2, 3, grad=True)]


def wanted() -> tuple[torch.Tensor, ...]:
    x, w = two()
    return torch.autograd.grad((x * w).sin().sum(), [x, w])


def spying(seen: list[Any], look: Any) -> Any:
    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            seen.append(look())
            return run(args)

        return spy

    return compiler


def test_W21_views_are_replayed_inside_a_training_call_and_not_after_it() -> None:
    seen: list[bool] = []
    call = wrapped(product, two, forward=spying(seen, flags.is_view_replay_enabled))
    call(two())
    assert seen == [True] and not flags.is_view_replay_enabled()


def test_W21_modes_are_restored_after_an_exception() -> None:
    def fails(args: list[Any]) -> Any:
        raise ValueError

    call = wrapped(product, two, forward=lambda *_: fails)
    with torch.no_grad(), torch.autocast(device()), pytest.raises(ValueError):
        call(two())
    with torch.no_grad():
        with pytest.raises(ValueError):
            call(two())
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled() and not flags.is_view_replay_enabled()
    assert not torch.is_autocast_enabled(device())


def test_W42_deterministic_mode_between_forward_and_backward_is_an_error() -> None:
    call = wrapped(product, two)
    (y,) = call(two())
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            y.sum().backward()
        (z,) = wrapped(product, two)(two())
    finally:
        torch.use_deterministic_algorithms(False)
    z.sum().backward()


def test_W42_a_transform_around_a_call_is_an_error_with_the_cure() -> None:
    call = wrapped(product, two)
    x, w = two()
    with pytest.raises(RuntimeError, match=r"torch\.func.*Fix: "):
        torch.func.grad(lambda x: call([x, w])[0].sum())(x)
    with pytest.raises(RuntimeError, match=r"torch\.func.*Fix: "):
        torch.func.vmap(lambda x: call([x, w])[0])(torch.stack([x, x]))


def test_W42_a_transform_around_a_call_without_gradients_is_an_error_too() -> None:
    call = wrapped(lambda x: [x * x], lambda: [numbers(2)])
    with pytest.raises(RuntimeError, match=r"torch\.func.*Fix: "):
        torch.func.grad(lambda x: call([x])[0].sum())(numbers(2))
    assert torch.equal(call([numbers(2)])[0], numbers(2).square())


def test_W42_a_transform_around_a_backward_is_an_error_with_the_cure() -> None:
    x, w = two()
    (y,) = wrapped(product, two)([x, w])
    with pytest.raises(UsageError, match=r"backward.*torch\.func.*Fix: "):
        torch.func.vmap(lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0])(alike(1, 2, 2, 3))


def test_W42_batched_gradients() -> None:
    x, w = two()
    (y,) = wrapped(product, two)([x, w])
    batch = torch.stack([alike(1, 2, 3), alike(2, 2, 3)])
    (found,) = torch.autograd.grad(y, x, batch, is_grads_batched=True)
    torch.testing.assert_close(found, torch.stack([wanted()[0], wanted()[0] * 2]))


def test_W42_context_variables_of_the_caller_are_seen_in_the_backward() -> None:
    seen: list[int] = []
    (y,) = wrapped(product, two, backward=spying(seen, VARIABLE.get))(two())
    token = VARIABLE.set(5)
    try:
        y.sum().backward()
    finally:
        VARIABLE.reset(token)
    assert seen == [5]


def test_W42_on_a_thread_of_the_engine_the_callers_context_is_entered() -> None:
    seen: list[int] = []

    def run(values: list[Any]) -> Any:
        seen.append(VARIABLE.get())
        return values

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            if not torch._C._is_key_in_tls("context"):
                pytest.skip("this torch does not pass the context on")
            stash = torch._C._get_obj_in_tls("context")

            def other() -> None:
                torch._C._stash_obj_in_tls("context", stash)
                run_in_callers_context(run, [1])

            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            return gradients[0] * 2

    token = VARIABLE.set(7)
    try:
        Node.apply(numbers(2, grad=True)).sum().backward()
    finally:
        VARIABLE.reset(token)
    assert seen == [7]


PACKS: dict[str, Any] = {
    "bfloat16": (lambda t: t.to(torch.bfloat16), lambda t: t.to(torch.float32), 1e-2),
    "copy": (lambda t: t.clone(), lambda t: t, 1e-6),
    "to the host": (lambda t: t.to("cpu", copy=True), lambda t: t.to(device()), 1e-6),
    "numpy": (lambda t: t.detach().cpu().numpy(), lambda a: torch.from_numpy(a).to(device()), 1e-6),
    "list": (lambda t: [t.tolist()], lambda a: torch.tensor(a[0], device=device()), 1e-6),
}


@pytest.mark.parametrize("partition", ["default", "min_cut"])
@pytest.mark.parametrize("name", PACKS)
def test_W44_hooks_see_each_saved_tensor_once_and_what_they_unpack_is_used(name: str, partition: str) -> None:
    pytest.importorskip("numpy")
    pack, unpack, tolerance = PACKS[name]
    packed: list[int] = []
    unpacked: list[int] = []
    changes = {"partition": min_cut} if partition == "min_cut" else {}
    call = wrapped(product, two, **changes)
    x, w = two()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (packed.append(t.data_ptr()), pack(t))[1], lambda v: (unpacked.append(1), unpack(v))[1]
    ):
        (y,) = call([x, w])
    y.sum().backward()
    assert len(packed) == len(set(packed)) == call.plan.node.saved == len(unpacked)
    assert {x.data_ptr(), w.data_ptr()} <= set(packed)
    for mine, expected in zip((x.grad, w.grad), wanted(), strict=True):
        torch.testing.assert_close(mine, expected, atol=tolerance, rtol=tolerance)


def test_W44_what_a_hook_keeps_does_not_change_in_the_next_step() -> None:
    kept: list[torch.Tensor] = []
    call = wrapped(lambda x: [x.sin().exp()], lambda: [numbers(3, grad=True)], partition=min_cut)
    for k in range(2):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
            (y,) = call([(numbers(3) + k).requires_grad_()])
        if k == 0:
            before = [value.clone() for value in kept]
        y.sum().backward()
    assert before and all(torch.equal(value, was) for value, was in zip(kept, before, strict=False))


def test_W44_hooks_do_not_see_the_trace() -> None:
    seen: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (seen.append(t), t)[1], lambda t: t):
        wrapped(product, two)
    assert seen == []


def test_W45_under_compiled_autograd_training_is_refused_with_the_cure() -> None:
    config = torch._dynamo.config
    with config.patch(compiled_autograd=True):
        with pytest.raises(Refusal, match="compiled autograd"):
            wrapped(product, two)
        wrapped(product, lambda: [value.detach() for value in two()])


def test_W45_compiled_autograd_around_a_backward_only_is_right() -> None:
    x, w = two()
    (y,) = wrapped(product, two)([x, w])
    loss = y.sum()
    torch._dynamo.reset()
    with (
        warnings.catch_warnings(),
        torch._dynamo.compiled_autograd._enable(lambda module: torch.compile(module, backend="eager")),
    ):
        warnings.simplefilter("ignore")
        loss.backward()
    torch._dynamo.reset()
    for mine, expected in zip((x.grad, w.grad), wanted(), strict=True):
        torch.testing.assert_close(mine, expected)


def test_W45_backward_states_are_refused_and_two_are_an_internal_error() -> None:
    from torch.fx.experimental._backward_state import BackwardState

    with pytest.raises(Refusal, match="compiled autograd"):
        wrap_function(lambda x, state: [x], [numbers(2), BackwardState()], compilers())
    with pytest.raises(InternalError, match="2 backward states"):
        wrap_function(lambda *_: [], [BackwardState(), BackwardState()], compilers())

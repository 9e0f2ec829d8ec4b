"""Custom functions in programs that the caller differentiates: what the Python of their backwards reads, uses and changes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support import assert_same, jit
from treeplay import Refusal

Backward = Callable[..., Any]


def doubling(backward: Backward) -> Any:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, *saved: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*saved)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return backward(grad, *ctx.saved_tensors), *(None for _ in ctx.saved_tensors)

    return Doubled


def gradient_of(program: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    x = torch.arange(3.0).requires_grad_()
    program(x).sum().backward()
    assert x.grad is not None
    return x.grad


@torch.library.custom_op("tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_fake(lambda x: torch.empty_like(x))
_world = SimpleNamespace(scale=1.0)
doubled.register_autograd(lambda _, grad: grad * _world.scale)


@pytest.mark.parametrize("kind", ["function", "operator"])
def test_a_number_that_a_backward_reads_is_guarded(kind: str) -> None:
    function = doubling(lambda grad: grad * _world.scale)
    jitted = jit(lambda x: function.apply(x * 3)) if kind == "function" else jit(lambda x: doubled(x * 3))
    for scale in (2.0, 5.0):
        _world.scale = scale
        for _ in range(3):
            assert_same(gradient_of(jitted), torch.full((3,), 3 * scale))
    assert jitted.statistics().recordings == 2


def test_a_backward_that_is_replaced_is_noticed() -> None:
    function = doubling(lambda grad: grad * 2)
    jitted = jit(lambda x: function.apply(x * 3))
    for _ in range(3):
        assert_same(gradient_of(jitted), torch.full((3,), 6.0))
    function.backward = staticmethod(lambda ctx, grad: grad * 7)
    for _ in range(3):
        assert_same(gradient_of(jitted), torch.full((3,), 21.0))


def test_a_tensor_that_only_a_backward_uses_may_be_saved_for_it() -> None:
    gain = torch.ones(3)
    function = doubling(lambda grad, gain: grad * gain - 1)
    jitted = jit(lambda x: function.apply(x * 3, gain))
    for at in range(4):
        gain.fill_(at)
        assert_same(gradient_of(jitted), torch.full((3,), 3.0 * (at - 1)))
    assert jitted.statistics().replays == 3


def test_a_tensor_that_is_not_saved_is_refused() -> None:
    gain = torch.ones(3)
    function = doubling(lambda grad: grad * gain)
    jitted = jit(lambda x: function.apply(x * 3) - gain)
    gradient_of(jitted)
    with pytest.raises(Refusal, match="with a tensor that is not saved for it") as caught:
        jitted(torch.ones(3, requires_grad=True))
    assert "save_for_backward" in caught.value.advice


def _counts(state: dict[str, Any], grad: torch.Tensor) -> torch.Tensor:
    state["calls"] += 1
    return grad


def _keeps(state: dict[str, Any], grad: torch.Tensor) -> torch.Tensor:
    state["last"] = grad * 2
    return grad


def _writes(state: dict[str, Any], grad: torch.Tensor) -> torch.Tensor:
    state["total"].add_(1)
    return grad


def _calls_backward(state: dict[str, Any], grad: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        (state["weight"] * 2).sum().backward()
    return grad


@pytest.mark.parametrize(
    ("does", "told"),
    [
        (_counts, "changes state.calls"),
        (_keeps, "changes state.last"),
        (_writes, "writes to a tensor that outlives the call"),
        (_calls_backward, r"changes state\['weight'\].grad"),
    ],
)
def test_a_backward_that_does_more_than_give_gradients_is_refused_and_leaves_no_mark(does: Any, told: str) -> None:
    state = {"calls": 0, "last": None, "total": torch.zeros(()), "weight": torch.ones(3, requires_grad=True)}
    function = doubling(lambda grad: does(state, grad))
    jitted = jit(lambda x: function.apply(x * 3))
    x = torch.ones(3, requires_grad=True)
    jitted(x)
    with pytest.raises(Refusal, match=told) as caught:
        jitted(x)
    assert caught.value.op == "Doubled.backward"
    assert caught.value.where is not None and caught.value.where.function == "backward"
    assert (state["calls"], state["last"], state["total"], state["weight"].grad) == (0, None, 0, None)


def test_random_numbers_of_a_backward_are_drawn_when_it_runs() -> None:
    function = doubling(lambda grad: grad * torch.rand(3))
    jitted, sides = jit(lambda x: function.apply(x * torch.rand(3))), []
    for program in (jitted, lambda x: function.apply(x * torch.rand(3))):
        torch.manual_seed(3)
        sides.append([gradient_of(program) for _ in range(4)])
    assert_same(*sides)
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_function_that_the_program_defines_is_recorded(is_whole: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = doubling(lambda grad: grad * 5).apply(x * 3)
        return torch.autograd.grad(y.sum(), x)[0] if is_whole else y

    jitted = jit(program)
    for _ in range(4):
        found = jitted(torch.ones(3, requires_grad=True)) if is_whole else gradient_of(jitted)
        assert_same(found, torch.full((3,), 15.0))
    assert jitted.statistics().replays == 3


def test_a_backward_is_given_gradients_of_all_results() -> None:
    class Largest(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            values, places = x.topk(2)
            ctx.save_for_backward(places)
            ctx.mark_non_differentiable(places)
            return values, places, "no tensor"

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor, of_places: torch.Tensor, nothing: None) -> torch.Tensor:
            assert of_places.shape == grad.shape and of_places.dtype == torch.int64 and nothing is None
            return torch.zeros(3).scatter(0, ctx.saved_tensors[0], grad * 3)

    jitted = jit(lambda x: Largest.apply(x * 2)[0])
    for _ in range(4):
        assert_same(gradient_of(jitted), torch.tensor([0.0, 6.0, 6.0]))
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("kind", ["register_hook", "register_prehook"])
def test_a_hook_on_a_node_of_the_graph_is_refused(kind: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        getattr(y.grad_fn, kind)(lambda grads, *_: (grads[0] * 3,))
        return y

    jitted = jit(program)
    gradient_of(jitted)
    with pytest.raises(Refusal, match="the hook would have to run in each backward"):
        jitted(torch.ones(3, requires_grad=True))

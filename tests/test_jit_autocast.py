"""Autocast around and inside of programs: dtypes, gradients and the weight cache are eager's."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import Twins, assert_same, jit
from treeplay.torch_seam.flags import autocast_state, set_autocast_state


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4))


def using_weights_twice(model: nn.Module, optimizer: Any) -> Any:
    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(model(x)).float() - model(x) * 2).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def twins(make: Any = using_weights_twice, **options: Any) -> Twins:
    torch.manual_seed(5)
    model = net()
    return Twins(make, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), **options)


def x() -> torch.Tensor:
    return torch.randn(8, 4)


@pytest.mark.parametrize("cache", [True, False])
def test_a_step_under_autocast_adds_gradients_up_as_eager_does(cache: bool) -> None:
    pair = twins()
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
            pair.call(x())
    assert pair.statistics.replays == 4


def test_the_weight_cache_is_part_of_the_key() -> None:
    pair = twins()
    for call in range(8):
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=call % 2 == 0):
            pair.call(x())
    assert len(pair.statistics.keys) == 2 and pair.statistics.replays == 6


def test_the_dtype_of_autocast_is_part_of_the_key() -> None:
    pair = twins()
    for call in range(12):
        dtype = (torch.bfloat16, torch.float16, None)[call % 3]
        with torch.autocast("cpu", dtype) if dtype else contextlib.nullcontext():
            pair.call(x())
    assert len(pair.statistics.keys) == 3 and pair.statistics.replays == 9


def test_nested_autocast_inside_of_a_program() -> None:
    def make(model: nn.Module, optimizer: Any) -> Any:
        def step(x: torch.Tensor) -> Any:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                half = model(x)
                with torch.autocast("cpu", enabled=False):
                    full = model(half.float())
                with torch.autocast("cpu", torch.float16, cache_enabled=False):
                    other = model(x)
            loss = half.float().sum() - full.pow(2).sum() + other.float().mean()
            loss.backward()
            optimizer.step()
            return half.detach(), full.detach(), other.detach()

        return step

    pair = twins(make)
    pair.calls(5, lambda: (x(),))
    assert [t.dtype for t in pair.call(x())] == [torch.bfloat16, torch.float32, torch.float16]
    with torch.autocast("cpu", torch.bfloat16):
        pair.call(x())


def test_the_dtype_that_a_program_casts_to_is_watched() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.dtype = nn.Linear(4, 4), torch.bfloat16

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", self.dtype):
                return self.layer(x)

    model = Mixed()
    jitted = jit(model)
    with torch.no_grad():
        for call in range(8):
            model.dtype = torch.bfloat16 if call < 4 else torch.float16
            value = x()
            assert_same(jitted(value), model(value))
    assert jitted.statistics().recordings == 2


def test_no_cast_of_a_trace_is_left_in_the_cache() -> None:
    """eager, trace, eager inside of one autocast region, with gradients through the cast weights"""
    model = net()
    twin = copy.deepcopy(model)
    jitted = jit(lambda x: model(x).detach())
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(4):
            value = x()
            for own in (model, twin):
                own.zero_grad()
                own(value).float().pow(2).sum().backward()
            jitted(value)
            for own in (model, twin):
                own(value).float().pow(2).sum().backward()
            assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])


def test_autocast_that_a_program_leaves_on_is_refused() -> None:
    def leaving(x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_enabled("cpu", True)
        return x * 2 - 1

    def entering(x: torch.Tensor) -> torch.Tensor:
        torch.autocast("cpu", torch.bfloat16).__enter__()
        return x * 2 - 1

    before = autocast_state()
    for program in (leaving, entering):
        jitted = jit(program)
        try:
            jitted(x())
            set_autocast_state(before)
            with pytest.raises(treeplay.Refusal, match="leaves autocast changed"):
                jitted(x())
            assert autocast_state() == before
        finally:
            set_autocast_state(before)


def test_a_region_around_several_steps_casts_weights_anew_on_each() -> None:
    """Eager keeps the casts of the first step until the region ends, and so trains on stale weights; a recording does not."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    inputs, targets = x(), x()
    with torch.autocast("cpu", torch.bfloat16):
        losses = [float(step(inputs, targets)) for _ in range(12)]
    assert losses[-1] < losses[2]


PRODUCTS_IN_BACKWARD = {
    "inv": lambda x: torch.linalg.inv(x * 2),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None] - 1, x[None] * 2),
}


@pytest.mark.parametrize("name", PRODUCTS_IN_BACKWARD)
def test_the_callers_backward_behind_autocast_casts_nothing(name: str) -> None:
    def gradient(program: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = program(x)
        (found,) = torch.autograd.grad(out.sin().sum(), x)
        return found

    program = PRODUCTS_IN_BACKWARD[name]
    jitted = jit(lambda x: program(x) * 1)
    for _ in range(4):
        x = torch.randn(6, 6, requires_grad=True)
        assert_same(gradient(jitted, x), gradient(program, x))
    assert jitted.statistics().replays == 3


SQUARE = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)) * 0.3 + torch.eye(6))
CAST_IN_BACKWARD: dict[str, Any] = {
    "a product behind a cast": lambda x: x @ torch.linalg.qr(SQUARE)[0],
    "a check of values": lambda x: x @ torch.linalg.cholesky(SQUARE @ SQUARE.t() + torch.eye(6)),
    "a kernel that computes with others": lambda x: F.bilinear(x, x - 1, torch.stack([SQUARE, SQUARE * 2 - 1])),
    "random numbers": lambda x: F.dropout(x @ torch.linalg.inv(SQUARE), 0.5),
    "nothing": lambda x: torch.tanh(x @ SQUARE) - 1,
}


def _gradient(program: Any, forward: Any, backward: Any, *, again: bool = False) -> tuple[torch.Tensor, ...]:
    """The gradient of the weight. `forward`, `backward`: what autocast casts to around them, or None."""
    torch.manual_seed(3)
    with torch.autocast("cpu", forward or torch.bfloat16, enabled=forward is not None):
        out = program(torch.randn(4, 6) * 2)
    loss = out.float().sin().sum()
    with torch.autocast("cpu", backward or torch.bfloat16, enabled=backward is not None):
        (gradient,) = torch.autograd.grad(loss, SQUARE, create_graph=again)
        bend = torch.autograd.grad(gradient.float().pow(2).sum(), SQUARE) if again else ()
    return gradient.detach(), *bend


@pytest.mark.parametrize("name", CAST_IN_BACKWARD)
@pytest.mark.parametrize("front", ["jit", "compile"])
@pytest.mark.parametrize(
    ("forward", "backward"),
    [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, torch.float16), (None, torch.bfloat16), (torch.bfloat16, None)],
)
def test_a_backward_is_under_the_autocast_of_its_caller(name: str, front: str, forward: Any, backward: Any) -> None:
    program = CAST_IN_BACKWARD[name]
    torch._dynamo.reset()
    ours: Any = (
        jit(program) if front == "jit" else torch.compile(program, backend="treeplay", options={"inner": "aten"})
    )
    wanted = _gradient(program, forward, backward)
    for _ in range(3):
        assert_same(_gradient(ours, forward, backward), wanted)
    assert_same(_gradient(ours, forward, None), _gradient(program, forward, None))


@pytest.mark.parametrize(("forward", "backward"), [(torch.bfloat16, torch.bfloat16), (torch.bfloat16, None)])
@pytest.mark.parametrize("front", ["jit", "compile"])
def test_a_gradient_that_is_differentiated_is_that_of_the_forwards_autocast(
    front: str, forward: Any, backward: Any
) -> None:
    program = CAST_IN_BACKWARD["a product behind a cast"]
    torch._dynamo.reset()
    ours: Any = (
        jit(program) if front == "jit" else torch.compile(program, backend="treeplay", options={"inner": "aten"})
    )
    for _ in range(3):
        found, wanted = (_gradient(each, forward, backward, again=True) for each in (ours, program))
        assert_same(found[0], wanted[0])
        # Added up in another order, and under autocast in its dtype.
        assert (found[1] - wanted[1]).norm() < (5e-2 if backward else 1e-5) * wanted[1].norm()


@pytest.mark.parametrize("front", ["jit", "compile"])
def test_a_backward_that_only_autocast_makes_possible(front: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.pinv(SQUARE) @ x.t()  # without it, its backward multiplies matrices of two dtypes

    torch._dynamo.reset()
    ours: Any = (
        jit(program) if front == "jit" else torch.compile(program, backend="treeplay", options={"inner": "aten"})
    )
    for _ in range(3):
        assert_same(*(_gradient(each, torch.bfloat16, torch.bfloat16) for each in (ours, program)))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = ctx.saved_tensors
        return gradient.float() @ w.t(), x.t() @ gradient.float()


def test_a_backward_under_autocast_whose_gradients_cannot_be_computed_again_is_that_outside_of_it_and_says_so() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: Product.apply(x, SQUARE), backend="treeplay", options={"inner": "aten"})
    with pytest.warns(UserWarning, match=r"as outside of torch.autocast.*custom autograd function.*Fix: leave"):
        found = _gradient(compiled, torch.bfloat16, torch.bfloat16)
    assert_same(found, _gradient(compiled, torch.bfloat16, None))


def test_so_is_one_whose_arguments_are_gone() -> None:
    program = lambda x: (x * SQUARE).sum()  # noqa: E731
    ours = jit(program)
    for _ in range(3):
        gradients = []
        for each in (ours, program):
            loss = each(torch.ones(6, 6) * 2)
            with torch.autocast("cpu", torch.bfloat16), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gradients.append(torch.autograd.grad(loss, SQUARE))
        assert_same(*gradients)


def test_a_backward_that_autocast_does_not_change_need_not_be_computed_again() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    def program(x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x @ SQUARE) - 1

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="treeplay", options={"inner": "aten"})
    for _ in range(2):
        assert_same(*(_gradient(each, torch.bfloat16, torch.bfloat16) for each in (compiled, program)))


def decorated(model: nn.Module) -> Any:
    return torch.autocast("cpu", torch.bfloat16)(model.forward)


def entered_again(model: nn.Module) -> Any:
    block = torch.autocast("cpu", torch.bfloat16)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with block:
            return model(x)

    return forward


def switched_off(model: nn.Module) -> Any:
    return torch.autocast("cpu", enabled=False)(model.forward)


@pytest.mark.parametrize("around", [decorated, entered_again, switched_off])
def test_one_block_of_autocast_may_be_entered_in_each_call(around: Any) -> None:
    """It keeps what it found when it was entered: the cache is on there as in eager, whatever torch does where it traces."""
    model = net()
    twin = copy.deepcopy(model)
    jitted, eager = jit(around(model)), around(twin)
    for factor in (1.0, -2.0, 0.5, 3.0):
        value = x() * factor
        for call in (jitted, eager):
            call(value).float().pow(2).sum().backward()
        assert_same([p.grad for p in model.parameters()], [p.grad for p in twin.parameters()])
    assert jitted.statistics().replays == 3

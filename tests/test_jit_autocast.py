"""Autocast around and inside of programs: dtypes, gradients and the weight cache are eager's."""

from __future__ import annotations

import contextlib
import copy
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

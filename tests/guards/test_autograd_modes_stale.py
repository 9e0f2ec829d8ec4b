"""Modes of autograd and of autocast that change between calls: gradients, tangents, anomalies, hooks of saved tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from support import assert_same, jit
from support.follows import Story, follows, nothing, put_back

Tensor = torch.Tensor


def test_autocast_where_no_tensor_comes_in() -> None:
    weight = torch.randn(3, 3)

    @follows(worlds=1, given=nothing)
    def story() -> Story:
        yield lambda: weight @ weight - 1
        with torch.autocast("cpu", torch.bfloat16):
            yield
        with torch.autocast("cpu", torch.float16):
            yield
        with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
            yield

    story()


def test_the_dtype_of_autocast_where_no_tensor_comes_in() -> None:
    weight = torch.randn(3, 3)

    def program() -> Tensor:
        with torch.autocast("cpu"):
            return weight @ weight - 1

    @follows(worlds=1, given=nothing)
    def story() -> Story:
        with put_back(
            lambda: torch.get_autocast_dtype("cpu"), lambda value: torch.set_autocast_dtype("cpu", value)
        ) as set_:
            yield program
            set_(torch.float16)
            yield

    story()


def test_gradients_are_on_or_off_where_no_tensor_comes_in() -> None:
    weight = torch.randn(3, requires_grad=True)
    jitted = jit(lambda: weight * 2 - 1)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        for _ in range(4):
            with mode():
                found, expected = jitted(), weight * 2 - 1
                assert_same(found, expected)
                assert found.requires_grad == expected.requires_grad
                assert found.is_inference() == expected.is_inference()
    assert jitted.statistics().replays >= 6


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomalies_are_found_where_eager_finds_them() -> None:
    weight = torch.zeros(3, requires_grad=True)

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        (torch.sqrt(weight) * 0 * x).sum().backward()
        return weight.grad  # type: ignore[return-value]

    jitted, x = jit(step, on_refusal="eager"), torch.ones(3)
    for _ in range(4):
        assert jitted(x).isnan().all()
    assert jitted.statistics().replays >= 2
    with torch.autograd.detect_anomaly():
        for _ in range(4):
            with pytest.raises(RuntimeError, match="nan values"):
                jitted(x)
    assert jitted(x).isnan().all()


@pytest.mark.parametrize("where", ["argument", "closure", "attribute"])
def test_a_tangent_is_not_lost(where: str) -> None:
    weight = nn.Module()
    weight.value = torch.full((3,), 2.0)  # type: ignore[assignment]
    plain = torch.full((3,), 2.0)

    def program(x: Tensor) -> Tensor:
        return x * (plain if where == "closure" else weight.value) * 3 - 1  # type: ignore[operator]

    jitted = jit(program, on_refusal="eager")
    for _ in range(4):
        x = torch.randn(3)
        assert_same(jitted(x), program(x))
    assert jitted.statistics().replays >= 2
    with forward_ad.dual_level():
        for _ in range(4):
            x, tangent = torch.randn(3), torch.randn(3)
            if where == "argument":
                x = forward_ad.make_dual(x, tangent)
            elif where == "closure":
                plain = forward_ad.make_dual(torch.full((3,), 2.0), tangent)
            else:
                weight.value = forward_ad.make_dual(torch.full((3,), 2.0), tangent)  # type: ignore[assignment]
            found, expected = (forward_ad.unpack_dual(made) for made in (jitted(x), program(x)))
            assert_same(found.primal, expected.primal)
            assert expected.tangent is not None
            assert found.tangent is not None, "the tangent is lost"
            assert_same(found.tangent, expected.tangent)


def test_a_tangent_is_not_lost_in_the_first_calls_either() -> None:
    jitted = jit(lambda x: x * 3 - 1, on_refusal="eager")
    with forward_ad.dual_level():
        for _ in range(4):
            x = forward_ad.make_dual(torch.randn(3), torch.ones(3))
            assert_same(forward_ad.unpack_dual(jitted(x)).tangent, torch.full((3,), 3.0))
    for _ in range(4):
        x = torch.randn(3)
        assert_same(jitted(x), x * 3 - 1)


def test_tensors_that_autograd_saves_go_through_the_callers_hooks() -> None:
    weight = torch.ones(3, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        return (weight * x).pow(2).sum()

    def gradient(step: Callable[[Tensor], Tensor], x: Tensor, is_hooked: bool) -> Tensor:
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t)
        with hooks if is_hooked else contextlib.nullcontext():
            loss = step(x)
        return torch.autograd.grad(loss, weight)[0]

    jitted = jit(program, on_refusal="eager")
    for is_hooked in (False, True, False):
        for _ in range(4):
            x = torch.randn(3)
            assert_same(gradient(jitted, x, is_hooked), gradient(program, x, is_hooked))

"""Operators that compute with others do as where nobody watches, in the first call and in replays: those that are made of
others under inference mode, and those whose kernels call others under autocast."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, jit
from treeplay import Refusal
from treeplay.torch_seam.casts import as_unwatched, is_cast_inside, note_casts
from treeplay.torch_seam.modes import TorchDispatchMode

MATRIX, COMPLEX = torch.randn(5, 6), torch.randn(4, 4, dtype=torch.complex64)
PARAMETER = nn.Parameter(torch.randn(6, 6))


def _replays(program: Callable[..., Any], make: Callable[[], torch.Tensor]) -> None:
    jitted = jit(program)
    with torch.inference_mode():
        for _ in range(4):
            x = make()
            assert_same(jitted(x), program(x))
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_over_a_strided_batch(bias: bool) -> None:
    layer = nn.Linear(3, 3, bias=bias)
    for _ in range(4):
        _replays(lambda x: layer(x) * 2 - 1, lambda: torch.randn(4, 3, 3).transpose(0, 1))


def test_a_product_with_a_view_of_a_parameter_over_a_strided_batch() -> None:
    for _ in range(4):
        _replays(lambda x: x @ PARAMETER.t() - 1, lambda: torch.randn(4, 3, 6).transpose(0, 1))


@pytest.mark.parametrize("make", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_recurrent_layer(make: Any) -> None:
    layer = make(8, 8, batch_first=True)
    _replays(lambda x: layer(x)[0] - 1, lambda: torch.randn(3, 4, 8))


@pytest.mark.parametrize("needs_grad", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_over_one_row_resizes_nothing(bias: bool, needs_grad: bool) -> None:
    layer = nn.Linear(3, 3, bias=bias).requires_grad_(needs_grad)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _replays(lambda x: layer(x) * 2 - 1, lambda: torch.randn(3))


CAST = {
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, MATRIX),
    "tensordot": lambda x: torch.tensordot(x, MATRIX, ([1], [1])),
    "inner": lambda x: torch.inner(x, PARAMETER) - 1,
    "linear": lambda x: nn.functional.linear(x, MATRIX),
    "in float32 by itself": lambda x: nn.functional.cosine_similarity(x, x - 1),
    "attention": lambda x: nn.functional.scaled_dot_product_attention(x[None], x[None] - 1, x[None] * 2),
}


@pytest.mark.parametrize("name", CAST)
@pytest.mark.parametrize("is_inside", [True, False])
def test_autocast_casts_what_an_operator_is_made_of(name: str, is_inside: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_inside or torch.is_autocast_enabled("cpu")):
            return CAST[name](x) * 2

    with torch.autocast("cpu", torch.bfloat16, enabled=not is_inside):
        _replays(program, lambda: torch.randn(4, 6))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.fft.hfft2(x) - 1,
        lambda x: torch.linalg.vecdot(COMPLEX, COMPLEX * x[0, 0]) * 2,
        lambda x: (COMPLEX * x[0, 0]).conj().multiply_(COMPLEX) - 1,
        lambda x: torch.diff(PARAMETER * 1) - torch.diff(PARAMETER) * x[0, 0],
    ],
    ids=["hfft2", "vecdot", "multiply_", "views of a parameter"],
)
def test_what_is_lazy_in_an_operator_is_resolved(program: Callable[..., Any]) -> None:
    _replays(program, lambda: torch.randn(4, 4))


def _uncast_pinv(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return torch.linalg.pinv(x)


_LIBRARY = torch.library.Library("treeplay_tests_apart", "DEF")
_LIBRARY.define("uncast_pinv(Tensor x) -> Tensor")
_LIBRARY.impl("uncast_pinv", _uncast_pinv, "CompositeImplicitAutograd")


THETA, BILINEAR = torch.randn(1, 2, 3), nn.Bilinear(6, 6, 5)
KERNELS = {
    "affine_grid": lambda x: nn.functional.affine_grid(THETA * x[0, 0], [1, 1, 2, 2], align_corners=False) * 2 - 1,
    "bilinear": lambda x: BILINEAR(x, x - 1) * 2 - 1,
    "pinv": lambda x: torch.linalg.pinv(x) * 2 - 1,
    "pinv into a tensor": lambda x: torch.linalg.pinv(x.detach(), out=torch.empty(6, 4)) * 2 - 1,
    "pinverse, which is cast as a whole": lambda x: torch.pinverse(x) * 2 - 1,
    "an operator that is not cast inside": lambda x: torch.ops.treeplay_tests_apart.uncast_pinv(x) * 2 - 1,
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", KERNELS)
def test_autocast_casts_what_a_kernel_computes_with(name: str, mode: Any) -> None:
    program = KERNELS[name]
    jitted = jit(program)
    for _ in range(4):
        x = torch.randn(4, 6)
        with mode(), torch.autocast("cpu", torch.bfloat16):
            assert_same(jitted(x), program(x))
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("name", ["affine_grid", "bilinear"])
def test_autocast_casts_what_a_kernel_computes_with_that_the_caller_differentiates(name: str) -> None:
    def gradients(program: Callable[..., Any], x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            out = program(x)
        return out.detach(), *torch.autograd.grad(out.float().sin().sum(), x)

    program = KERNELS[name]
    jitted = jit(program)
    for _ in range(4):
        x = torch.randn(4, 6, requires_grad=True)
        assert_same(gradients(jitted, x), gradients(program, x))
    assert jitted.statistics().replays == 3


def test_a_native_kernel_that_computes_with_others_is_refused_under_autocast_alone() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    jitted, x = jit(layer), torch.randn(2, 4, 8)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert_same(jitted(x), layer(x))
            with pytest.raises(Refusal, match=r"_transformer_encoder_layer_fwd.* autocast casts") as caught:
                jitted(x)
        for _ in range(3):
            assert_same(jitted(x), layer(x))
    assert caught.value.where is not None
    assert jitted.statistics().replays > 0


@pytest.mark.parametrize("is_cast", [True, False], ids=["autocast", "no autocast"])
def test_a_mode_is_told_of_autocast_inside_of_a_kernel(is_cast: bool) -> None:
    class Unwatched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            assert is_cast_inside(func) is (is_cast and func is torch.ops.aten._trilinear.default)
            return as_unwatched(func, args, kwargs or {}) if is_cast_inside(func) else func(*args, **(kwargs or {}))

    note_casts()
    x, w = torch.randn(4, 6), torch.randn(3, 6, 6)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        wanted = torch.bilinear(x, x - 1, w)
        with Unwatched():
            assert torch.equal(torch.bilinear(x, x - 1, w), wanted)

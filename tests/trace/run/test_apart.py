"""Under inference mode, operators that are made of others do as where nobody watches: in the first call and in replays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, jit

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

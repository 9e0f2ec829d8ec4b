"""Operators that Inductor computes otherwise than kernels do, taken apart as the kernels compute; and once, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import treeplay
from support import assert_same
from treeplay.lower.inductor.as_kernels import as_kernels

aten = torch.ops.aten
INF = float("inf")
EDGES = torch.tensor([0.0, -0.0, 1.0, -1.0, 6.0, 0.3, -0.3, 1e9, -1e-30, INF, -INF, float("nan")])
BYTES = torch.tensor([[0, 2, 0], [0, 1, 0]], dtype=torch.uint8)
PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "by a number": lambda x: (x // 0.1, x // -2, x // 0, torch.div(x, 0.1, rounding_mode="floor")),
    "by a tensor": lambda x: (x // x.flip(0), 7 // x, x // torch.tensor(0.1, dtype=torch.float64)),
    "of integers": lambda x: torch.arange(-3, 4) // 0.1,
    "root": lambda x: (x**-0.5, x**0.5),
}


def taken_apart(program: Callable[..., Any], *args: torch.Tensor) -> Any:
    return make_fx(program, decomposition_table=as_kernels({}))(*args)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("what", PROGRAMS)
def test_divisions_and_roots_are_the_kernels(what: str, dtype: torch.dtype) -> None:
    x = EDGES.to(dtype)
    found, expected = taken_apart(PROGRAMS[what], x)(x), PROGRAMS[what](x)
    assert_same(found, expected)
    assert_same(signs(found), signs(expected))


def signs(results: Any) -> list[torch.Tensor]:
    return [(1 / result[result == 0]).sign() for result in (results if isinstance(results, tuple) else (results,))]


def test_divisions_of_integers_and_by_a_truncated_quotient_are_left_whole() -> None:
    module = taken_apart(lambda x, n: (n // 2, torch.div(x, 2, rounding_mode="trunc")), EDGES, torch.arange(3))
    assert {node.target for node in module.graph.find_nodes(op="call_function", target=aten.div.Tensor_mode)}
    assert not module.graph.find_nodes(op="call_function", target=aten.fmod.Scalar)


def near_edges(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.acosh(), (-x).acosh(), y.atanh(), x.expm1(), y.expm1()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_are_exact_near_their_edges(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 1 + 1e-6, 1.5, 1e5, 1e9, 1e19, 1e30, INF, 0.5, -2.0], dtype=dtype)
    y = torch.tensor([0.0, -0.0, 1e-30, -1e-6, 0.3, -0.99999, 1.0, -1.0, 1.5, -INF], dtype=dtype)
    found = taken_apart(near_edges, x, y)(x, y)
    for value, expected in zip(found, near_edges(x, y), strict=True):
        torch.testing.assert_close(
            value, expected, rtol=3e-6 if dtype is torch.float32 else 1e-13, atol=0, equal_nan=True
        )
        assert_same(value.signbit()[~value.isnan()], expected.signbit()[~expected.isnan()])


@pytest.mark.compile
def test_compiled_they_are_the_kernels_too() -> None:
    def program(x: torch.Tensor, flags: torch.Tensor) -> Any:
        bytes_of = (flags.any(), flags.any(0), flags.any((0, 1), keepdim=True))
        return *bytes_of, *(part(x) for part in PROGRAMS.values()), torch.arange(-3, 4) % 2.5

    jitted = treeplay.jit(program, lower="inductor", on_refusal="raise")
    for _ in range(3):
        assert_same(jitted(EDGES, BYTES), program(EDGES, BYTES))
    assert jitted.statistics().replays

"""Operators that Inductor computes otherwise than torch's kernels, by more than rounding, written out as the kernels compute.

x // y, floats     floor(x / y): 1.0 // 0.1 is 10, inf // 2 is inf    ─▶   (x - fmod(x, y)) / y, rounded down: 9, nan
x ** -0.5          a power: 0 for -inf, inf for -0                    ─▶   1 / sqrt(x): nan, -inf
x.any(), bytes     a bool                                             ─▶   a byte
x.acosh(), CPU     inf above 1e19                                     ─▶   by asinh, of a root
x.atanh(), CPU     log((1 + x) / (1 - x)) / 2, coarse for small x     ─▶   by log1p, of |x|
x.expm1(), CPU     exp(x) - 1, coarse for small x                     ─▶   there by tanh
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treeplay.lower.inductor.signs import has_other_sign

aten = torch.ops.aten

_HALVES = (torch.float16, torch.bfloat16)


def as_kernels(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions, but for operators of which it makes something else than their kernels do."""
    return {
        **table,
        aten.div.Tensor_mode: _div,
        aten.div.Scalar_mode: _div,
        **{op: _floor_divide(table.get(op)) for op in (aten.floor_divide.default, aten.floor_divide.Scalar)},
        aten.pow.Tensor_Scalar: _power,
        **{op: _any(op) for op in (aten.any.default, aten.any.dim, aten.any.dims)},
        aten.acosh.default: _acosh,
        aten.atanh.default: _atanh,
        aten.expm1.default: _expm1,
    }


def _div(dividend: Any, divisor: Any, *, rounding_mode: str | None = None) -> Any:
    dtype = torch.result_type(dividend, divisor)
    if rounding_mode != "floor" or not dtype.is_floating_point:
        return NotImplemented
    return _rounded_down(dividend, divisor, dtype)


def _floor_divide(parts: Callable[..., Any] | None) -> Callable[..., Any]:
    def divide(dividend: Any, divisor: Any) -> Any:
        dtype = torch.result_type(dividend, divisor)
        if dtype.is_floating_point:
            return _rounded_down(dividend, divisor, dtype)
        return NotImplemented if parts is None else parts(dividend, divisor)

    return divide


def _rounded_down(dividend: Any, divisor: Any, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.float32 if dtype in _HALVES else dtype
    a, b = (value.to(wide) if isinstance(value, torch.Tensor) else value for value in (dividend, divisor))
    if not isinstance(a, torch.Tensor):  # 7 // x
        a = torch.full((), a, dtype=wide, device=b.device)
    rest = torch.fmod(a, b)
    whole = (a - rest) / b
    whole = torch.where(has_other_sign(rest, b), whole - 1, whole)
    down = whole.floor()
    down = torch.where(whole - down > 0.5, down + 1, down)
    ratio = a / b
    down = torch.where(whole != 0, down, torch.copysign(torch.zeros_like(ratio), ratio))
    down = torch.where(b == 0, ratio, down) if isinstance(b, torch.Tensor) else ratio if b == 0 else down
    return down.to(dtype)


def _power(base: Any, exponent: Any) -> Any:
    is_kernels = isinstance(exponent, float) and exponent == -0.5 and base.dtype.is_floating_point
    # For float16, the CPU has a kernel of its own, which computes a power.
    is_kernels = is_kernels and not (base.dtype is torch.float16 and base.device.type == "cpu")
    return base.rsqrt() if is_kernels else NotImplemented


def _any(op: Any) -> Callable[..., Any]:
    def answer(values: Any, *args: Any, **kwargs: Any) -> Any:
        return op(values != 0, *args, **kwargs).to(torch.uint8) if values.dtype is torch.uint8 else NotImplemented

    return answer


def _is_float_on_cpu(values: Any) -> bool:
    return values.device.type == "cpu" and values.dtype in (torch.float32, torch.float64)


def _acosh(values: Any) -> Any:
    if not _is_float_on_cpu(values):
        return NotImplemented
    return 2 * ((values - 1) / 2).sqrt().asinh()


def _atanh(values: Any) -> Any:
    if not _is_float_on_cpu(values):
        return NotImplemented
    size = values.abs()
    return torch.copysign(torch.log1p(2 * size / (1 - size)) / 2, values)


def _expm1(values: Any) -> Any:
    if not _is_float_on_cpu(values):
        return NotImplemented
    half = torch.tanh(values / 2)
    return torch.where(values.abs() < 1, 2 * half / (1 - half), values.exp() - 1)

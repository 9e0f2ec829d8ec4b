"""Operators that take a symbolic number, and what each does when the number is a 0-dim tensor instead.

A lowering that runs operators as they are passes the number on. One that compiles needs tensors: `FORMULAS` writes each
operator anew with tensors in the places of numbers, in the order of operations that eager uses. An operator that is in
neither table gets today's value as a constant, under an equality guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.trace.training.fused import FUSED, RATE_AS_A_TENSOR

aten = torch.ops.aten
Tensor = torch.Tensor


def like(scalar: Any, tensor: Tensor) -> Any:
    """`scalar` in the dtype that a Python number would take beside `tensor`."""
    if not isinstance(scalar, Tensor):
        return scalar
    return scalar.to(_dtype_of(scalar, tensor.dtype))


def _dtype_of(scalar: Tensor, beside: torch.dtype) -> torch.dtype:
    if scalar.dtype == torch.int64:
        return scalar.dtype if beside == torch.bool or beside.is_complex else beside
    if beside.is_complex:
        return beside.to_real()
    return beside if beside.is_floating_point else torch.get_default_dtype()


def by_formula(op: Any, numbers: Sequence[bool], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """`op` with tensors in the places of numbers; `numbers` says which of the first two arguments are such, or plain ones.

    What formulas take first is a tensor. A number in its place (`number // x`) becomes the tensor that torch makes of it.
    """
    if not numbers or not numbers[0] or str(op._schema.arguments[0].type) != "Tensor":
        return FORMULAS[op](*args, **kwargs)
    first, other = args[0], args[1]
    if not isinstance(first, Tensor):
        first = torch.as_tensor(first, device="cpu")
    if not numbers[1]:
        first = like(first, other)
    elif first.is_floating_point():
        first = first.to(torch.get_default_dtype())
    # With no other number, the operator itself: a formula would take the tensor that comes second for one.
    run = FORMULAS[op] if numbers[1] or isinstance(kwargs.get("alpha"), Tensor) else op
    return run(first, *args[1:], **kwargs)


def _scaled(b: Any, alpha: Any, a: Any) -> Any:
    if not isinstance(alpha, Tensor):  # then `b` is the number
        return like(b if alpha == 1 else b * alpha, a)
    # Where both are tensors, they may be of two types.
    wide = torch.result_type(a, b)
    return (b.to(wide) if isinstance(b, Tensor) else b) * alpha.to(_dtype_of(alpha, wide))


def _beside(function: Callable[..., Any]) -> Callable[..., Any]:
    """A formula of a tensor and a number."""

    def run(a: Any, b: Any, **options: Any) -> Any:
        return function(a, like(b, a), **options)

    return run


def _with_alpha(function: Callable[..., Any]) -> Callable[..., Any]:
    """A formula of a tensor and of what is scaled first."""

    def run(a: Any, b: Any, alpha: Any = 1) -> Any:
        return function(a, _scaled(b, alpha, a))

    return run


def _addcmul(a: Any, b: Any, c: Any, value: Any = 1) -> Any:
    return a + (b * like(value, b)) * c


def _addcdiv(a: Any, b: Any, c: Any, value: Any = 1) -> Any:
    return a + (b * like(value, b)) / c


def _lerp(a: Any, b: Any, weight: Any) -> Any:
    w = like(weight, a)
    # In two forms, as torch's kernel computes it.
    return torch.where(w < 0.5, a + w * (b - a), b - (b - a) * (1 - w))


def _clamp(a: Any, minimum: Any = None, maximum: Any = None) -> Any:
    out = a if minimum is None else torch.maximum(a, like(torch.as_tensor(minimum, device="cpu"), a))
    return out if maximum is None else torch.minimum(out, like(torch.as_tensor(maximum, device="cpu"), a))


def _fill(a: Any, value: Any) -> Any:
    return _written_over(torch.zeros_like(a), value)


def _written_over(zeros: Tensor, value: Tensor) -> Tensor:
    """`value` everywhere; as a sum, it would lose the sign of a zero."""
    return torch.where(torch.ones_like(zeros, dtype=torch.bool), value.to(zeros.dtype), zeros)


def _rsub(a: Any, b: Any, alpha: Any = 1) -> Any:
    if not isinstance(alpha, Tensor):
        return like(b, a) - (a if alpha == 1 else a * alpha)
    return b - _scaled(a, alpha, b)


def _where(condition: Any, a: Any, b: Any) -> Any:
    return torch.where(condition, like(a, b), like(b, a))


def masked_fill(a: Any, mask: Any, value: Any) -> Tensor:
    """`value` where the mask holds."""
    return torch.where(mask, value.to(a.dtype), a)


def _index_fill(a: Any, dim: int, index: Any, value: Any) -> Any:
    return torch.index_fill(a, dim, index, value.to(a.dtype))


def _scatter(a: Any, dim: int, index: Any, value: Any) -> Any:
    return torch.scatter(a, dim, index, value.to(a.dtype).expand(index.shape))


def _power_of(base: Any, exponent: Any) -> Any:
    return like(base, exponent) ** exponent


def _powers_of(base: Any, exponents: Sequence[Any]) -> list[Any]:
    return [_power_of(base, exponent) for exponent in exponents]


def _full(size: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    inferred = torch.int64 if value.dtype == torch.int64 else torch.get_default_dtype()
    return _written_over(torch.zeros(size, dtype=dtype if dtype is not None else inferred, **options), value)


def _scalar_tensor(value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    return _full((), value, dtype=dtype if dtype is not None else torch.get_default_dtype(), **options)


def _full_like(a: Any, value: Any, **options: Any) -> Any:
    return _written_over(torch.zeros_like(a, **options), value)


_POINTWISE: dict[str, Callable[..., Any]] = {
    "mul.Tensor": _beside(operator.mul),
    "mul.Scalar": _beside(operator.mul),
    "add.Tensor": _with_alpha(operator.add),
    "add.Scalar": _with_alpha(operator.add),
    "sub.Tensor": _with_alpha(operator.sub),
    "sub.Scalar": _with_alpha(operator.sub),
    "div.Tensor": _beside(operator.truediv),
    "div.Scalar": _beside(operator.truediv),
    "pow.Tensor_Scalar": _beside(operator.pow),
    "addcmul.default": _addcmul,
    "addcdiv.default": _addcdiv,
    "lerp.Scalar": _lerp,
    "fill.Scalar": _fill,
    "rsub.Scalar": _rsub,
    "rsub.Tensor": _rsub,
    "remainder.Scalar": _beside(torch.remainder),
    "remainder.Tensor": _beside(torch.remainder),
    "fmod.Scalar": _beside(torch.fmod),
    "floor_divide.default": _beside(torch.floor_divide),
    "floor_divide.Scalar": _beside(torch.floor_divide),
    "div.Tensor_mode": _beside(torch.div),
    "div.Scalar_mode": _beside(torch.div),
    "masked_fill.Scalar": masked_fill,
    "index_fill.int_Scalar": _index_fill,
    "scatter.value": _scatter,
    "clamp_min.default": _beside(torch.maximum),
    "clamp_max.default": _beside(torch.minimum),
    **{f"{name}.Scalar": _beside(getattr(torch, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}
_FOREACH: dict[str, Callable[..., Any]] = {
    "mul": _beside(operator.mul),
    "add": _with_alpha(operator.add),
    "sub": _with_alpha(operator.sub),
    "div": _beside(operator.truediv),
    "addcmul": _addcmul,
    "addcdiv": _addcdiv,
    "lerp": _lerp,
    "pow": _beside(operator.pow),
    **dict.fromkeys(("clamp_min", "maximum"), _beside(torch.maximum)),
    **dict.fromkeys(("clamp_max", "minimum"), _beside(torch.minimum)),
}
_FOREACH_OVERLOADS = ("Scalar", "ScalarList", "List")


_OUT = {"Tensor": ("out", "Tensor_out"), "default": ("out",), "Tensor_mode": ("out_mode",), "value": ("value_out",)}
"""What the overload with `out=` is called beside one of this name, where it is not `<name>_out`."""


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    found = getattr(aten, packet, None)
    return getattr(found, overload, None) if found is not None and overload in found.overloads() else None


def _in_place(formula: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Tensor, *rest: Any, **named: Any) -> Any:
        return a.copy_(formula(a, *rest, **named))

    return run


def _into(formula: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, out: Tensor, **named: Any) -> Any:
        return out.copy_(formula(*args, **named))  # a trace has had it made with the result's size

    return run


def _for_each(formula: Callable[..., Any], *, in_place: bool) -> Callable[..., Any]:
    def run(tensors: Sequence[Tensor], *rest: Any, **named: Any) -> list[Tensor] | None:
        results = []
        for index, tensor in enumerate(tensors):
            own = [value[index] if isinstance(value, (list, tuple)) else value for value in rest]
            mine = {name: value[index] if isinstance(value, (list, tuple)) else value for name, value in named.items()}
            if "scalars" in mine:
                own.append(mine.pop("scalars"))
            results.append(formula(tensor, *own, **mine))
        if not in_place:
            return results
        for tensor, result in zip(tensors, results, strict=True):
            tensor.copy_(result)
        return None

    return run


# Of a fused optimizer's numbers, only the learning rate has an overload that takes it as a tensor.


def _by_tensor_lr(with_tensor: Any) -> Callable[..., Any]:
    def run(params: Sequence[Tensor], *rest: Any, lr: Any, **named: Any) -> Any:
        if params:
            return with_tensor(params, *rest, lr=lr.to(torch.float32), **named)
        return None

    return run


def _table() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {}
    for name, formula in _POINTWISE.items():
        packet, _, overload = name.partition(".")
        table[_overload(name)] = formula
        table[_overload(f"{packet}_.{overload}")] = _in_place(formula)
        for name_of_out in _OUT.get(overload, (f"{overload}_out",)):
            table[_overload(f"{packet}.{name_of_out}")] = _into(formula)
    for packet, formula in _FOREACH.items():
        for overload in _FOREACH_OVERLOADS:
            table[_overload(f"_foreach_{packet}.{overload}")] = _for_each(formula, in_place=False)
            table[_overload(f"_foreach_{packet}_.{overload}")] = _for_each(formula, in_place=True)
    for overload in ("self", "ScalarOther", "ScalarSelf"):
        table[_overload(f"where.{overload}")] = _where
    table[_overload("pow.Scalar")] = _power_of
    table[_overload("_foreach_pow.ScalarAndTensor")] = _powers_of
    table[_overload("full.default")] = _full
    table[_overload("scalar_tensor.default")] = _scalar_tensor
    table[_overload("full_like.default")] = _full_like
    table[_overload("clamp.default")] = _clamp
    table[_overload("clamp_.default")] = _in_place(_clamp)
    table[_overload("clamp.out")] = _into(_clamp)
    table[_overload("pow.Scalar_out")] = _into(_power_of)
    for op in RATE_AS_A_TENSOR:
        table[op] = _by_tensor_lr(op.overloadpacket.tensor_lr)
    table.pop(None, None)  # overloads that this torch lacks
    return table


FORMULAS: dict[Any, Callable[..., Any]] = _table()


def takes_symbolic_numbers(op: Any) -> bool:
    """Whether symbolic numbers may be passed to `op`."""
    return op in FORMULAS or op in FUSED


_POWERS = frozenset({aten.pow.Tensor_Scalar, aten.pow_.Scalar})


def ask_exponent(op: Any, args: Sequence[Any]) -> None:
    """Make it a condition that an exponent of integers is not negative: torch's kernel raises then, compiled code does not."""
    if op not in _POWERS or not isinstance(args[1], torch.SymInt):
        return
    if not (args[0].dtype.is_floating_point or args[0].dtype.is_complex) and args[1] < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")

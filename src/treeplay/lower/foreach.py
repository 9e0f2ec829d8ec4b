"""Operators on lists of tensors with symbolic numbers, where a stream is captured: few kernels, and no copies back.

_foreach_mul_(exp_avg_sqs, s0)                   ─▶   _foreach_mul_(exp_avg_sqs, s0 as a tensor)      one number for all
_foreach_addcdiv_(params, means, roots, [s1...]) ─▶   scaled = [mean * s1...]; _foreach_addcdiv_(params, scaled, roots)

`FORMULAS` writes each of them out tensor by tensor in plain operators, which a compiler fuses; run as they are, these would be
thousands of kernels in the step of an optimizer. The arithmetic is in the same order, but for `lerp`, which is eager's here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.torch_seam.schemas import by_name
from treeplay.trace.numbers.scalar_ops import FORMULAS, like

aten = torch.ops.aten
Tensor = torch.Tensor
TensorList = Sequence[Tensor]
Operator = Callable[..., Any]

SAME_BY_ONE: Any = aten._foreach_mul.Scalar
"""The identity over a list, given a one: what Inductor makes one kernel of, in which each tensor is computed once."""

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# In others, a weight of the tensors' type is rounded, and eager's is not.
_EXACT_WEIGHTS = (torch.float32, torch.float64)


def _is_symbolic(numbers: Any) -> bool:
    each = numbers if isinstance(numbers, (list, tuple)) else (numbers,)
    return any(isinstance(number, Tensor) for number in each)


def _fits(lists: Sequence[TensorList], dtypes: Sequence[torch.dtype]) -> bool:
    """Whether all tensors are of one of these types."""
    found = {tensor.dtype for tensors in lists for tensor in tensors}
    return len(found) == 1 and not found.isdisjoint(dtypes)


def _times(tensors: TensorList, numbers: Any) -> TensorList:
    """The tensors times a number each, or one for all."""
    if isinstance(numbers, (list, tuple)):
        return [tensor * number for tensor, number in zip(tensors, numbers, strict=True)]
    made: TensorList = aten._foreach_mul.Tensor(tensors, like(numbers, tensors[0]))
    return made


def _by_a_tensor(op: Any) -> Operator:
    """One number for all, of an operator that takes it as a tensor."""
    return lambda tensors, number: op(tensors, like(number, tensors[0]))


def _one_by_one(plain: Callable[[Tensor, Any], Tensor]) -> Operator:
    """A number each: one kernel for each tensor."""
    # The number is of another type than the tensor: the kernel converts it, as a conversion before it would.
    return lambda tensors, numbers: [plain(tensor, number) for tensor, number in zip(tensors, numbers, strict=True)]


def _with_the_last_scaled(op: Any) -> Operator:
    """Of a sum with a number, which scales what is added."""
    return lambda tensors, others, alpha: op(tensors, _times(others, alpha))


def _with_a_factor_scaled(op: Any) -> Operator:
    """Of a sum with a product, or a quotient, and a number."""
    return lambda tensors, first, second, numbers: op(tensors, _times(first, numbers), second)


def _lerp(plain: Callable[[Tensor, Tensor, Any], Tensor]) -> Operator:
    def run(tensors: TensorList, ends: TensorList, weights: Any) -> list[Tensor]:
        each = weights if isinstance(weights, (list, tuple)) else [like(weights, tensors[0])] * len(tensors)
        return [plain(start, end, like(weight, start)) for start, end, weight in zip(tensors, ends, each, strict=True)]

    return run


def _or_as_it_is(op: Any, run: Operator, number: str, dtypes: Sequence[torch.dtype]) -> Operator:
    """`run` where the number is symbolic, and the tensors of these types; else the operator, or as formulas write it."""

    def called(*args: Any, **kwargs: Any) -> Any:
        given = by_name(op, args, kwargs)
        if not _is_symbolic(given.get(number)):
            return op(*args, **kwargs)
        lists = [value for name, value in given.items() if name != number]
        if not _fits(lists, dtypes):
            return FORMULAS[op](*args, **kwargs)
        made = run(*lists, given[number])
        return made if op._schema.returns else None

    return called


def _table() -> dict[Any, Operator]:
    plain: dict[str, tuple[Any, Any]] = {
        "mul": (torch.mul, Tensor.mul_),
        "div": (torch.div, Tensor.div_),
        "add": (torch.add, Tensor.add_),
        "lerp": (torch.lerp, Tensor.lerp_),
    }
    table: dict[Any, Operator] = {}

    def enter(op: Any, run: Operator, number: str, dtypes: Sequence[torch.dtype] = _FLOATS) -> None:
        table[op] = _or_as_it_is(op, run, number, dtypes)

    for mark in ("", "_"):
        of = {name: getattr(aten, f"_foreach_{name}{mark}") for name in (*plain, "sub", "addcmul", "addcdiv")}
        for name in ("mul", "div", "add"):
            enter(of[name].Scalar, _by_a_tensor(of[name].Tensor), "scalar")
            enter(of[name].ScalarList, _one_by_one(plain[name][mark == "_"]), "scalars")
        for name in ("add", "sub"):
            enter(of[name].List, _with_the_last_scaled(of[name].List), "alpha")
        for name in ("addcmul", "addcdiv"):
            enter(of[name].Scalar, _with_a_factor_scaled(of[name].Scalar), "value")
            enter(of[name].ScalarList, _with_a_factor_scaled(of[name].Scalar), "scalars")
        for overload in ("Scalar", "ScalarList"):
            enter(getattr(of["lerp"], overload), _lerp(plain["lerp"][mark == "_"]), "weight", _EXACT_WEIGHTS)
    return table


ON_LISTS = _table()
"""What such operators are where a stream is captured."""

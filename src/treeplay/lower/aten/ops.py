"""What the arena plan must know of ATen operators beyond their schemas."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import COPIES, EMPTY, aten, is_random, out_form

# Memory with one number in it, by the position of the number or the number itself: in an arena, a fill.
_FILL_VALUES: dict[Any, int] = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}
_FILL_ZERO = frozenset({aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default})
_FILL_ONE = frozenset({aten.ones.default, aten.ones_like.default, aten.new_ones.default})
# Operators that take a tensor (or tensors) and a number, and the overload that takes the number as a tensor.
CELLS: dict[OpOverload, OpOverload] = {
    **{
        getattr(aten, name).Tensor: getattr(aten, name).Tensor
        for name in ("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_")
    },
    **{
        getattr(aten, f"_foreach_{name}").Scalar: getattr(aten, f"_foreach_{name}").Tensor
        for name in ("add", "add_", "mul", "mul_", "div", "div_")
    },
}


def is_pure(op: OpOverload) -> bool:
    """Whether equal arguments give equal results, and nothing else happens. Of an operator that is not torch's, who knows."""
    return op.namespace in ("aten", "prims") and not op._schema.is_mutable and not is_random(op) and op not in EMPTY


def fill_value(op: OpOverload, args: tuple[Any, ...]) -> Any:
    """The number that a factory fills its result with, or None if `op` is no such factory."""
    if op in _FILL_ZERO:
        return 0
    if op in _FILL_ONE:
        return 1
    position = _FILL_VALUES.get(op)
    return args[position] if position is not None and position < len(args) else None


def needs_only_memory(op: OpOverload, args: tuple[Any, ...]) -> bool:
    """Whether the results of `op` can be written into memory that is given to it."""
    return op in EMPTY or op in COPIES or fill_value(op, args) is not None or out_form(op) is not None


class Filling(NamedTuple):
    """A call that has memory hold what an operator gives. If it is the `out` form of `base`, it takes the operator's keywords
    too, and `outs` are the arguments by which it is told where to write."""

    op: OpOverload
    args: tuple[Any, ...]
    base: OpOverload | None = None
    outs: tuple[str, ...] = ()


def filling(op: OpOverload, args: tuple[Any, ...], target: Any) -> Filling | None:
    """How `target` comes to hold what an operator that `needs_only_memory` gives; None where any contents will do."""
    if op in EMPTY:
        return None
    if op in COPIES:
        return Filling(aten.copy_.default, (target, args[0]))
    value = fill_value(op, args)
    if value is not None:
        fill = aten.fill_.Tensor if isinstance(value, torch.Tensor) else aten.fill_.Scalar
        return Filling(fill, (target, value))
    form = out_form(op)
    assert form is not None
    return Filling(form.op, (*args, *form.more), form.base, form.outs)

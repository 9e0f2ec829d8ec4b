"""NumPy's numbers beside symbolic ones: which of its floats is as good as Python's, and what it computes of a symbol.

numpy.cos(step) * lr                 numpy.float64 * SymFloat ─▶ `meet_numpys` ─▶ Python's operator, in the same precision
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, cast

import torch

from treeplay.errors import Refusal
from treeplay.observe.lines import user_location
from treeplay.values.refusal import Reason


def is_float(value: object) -> bool:
    """Whether `value` is a float of Python's, or NumPy's of the same precision: arithmetic takes one for the other."""
    return type(value) is float or _is_numpys(value)


def _is_numpys(value: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.float64


def as_float(value: object) -> float:
    """NumPy's float as one of Python's; raises `TypeError` for anything else."""
    if _is_numpys(value):
        return float(cast(float, value))
    raise TypeError(f"a float is expected, found a {type(value).__name__}")


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "power": operator.pow,
    "float_power": operator.pow,
    "negative": operator.neg,
    "absolute": abs,
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def meet_numpys(_: torch.SymFloat, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
    """What NumPy computes of a symbolic number: where it is computed in the same precision, that of Python's operator."""
    numpy = sys.modules["numpy"]
    as_pythons = []
    for given in operands:
        if isinstance(given, (numpy.generic, numpy.ndarray)):
            if given.ndim == 0 and (given.dtype == numpy.float64 or given.dtype.kind in "biu"):
                as_pythons.append(given.item())
                continue
            raise _met(f"a number of type {given.dtype} meets one that is a symbol while the program is traced")
        as_pythons.append(given)
    if method != "__call__" or options or ufunc.__name__ not in _OPERATORS:
        raise _met(f"NumPy's {ufunc.__name__} is given a number that is a symbol while the program is traced")
    return _OPERATORS[ufunc.__name__](*as_pythons)


def _met(why: str) -> Refusal:
    reason = Reason(
        op="number",
        why=f"{why}, and the result would be rounded in another way",
        advice="keep the optimizer's numbers as Python floats: float(...)",
        where=user_location(),
    )
    return Refusal(reason)

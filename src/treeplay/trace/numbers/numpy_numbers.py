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
from treeplay.values.signature import is_numpys_float


def is_float(value: object) -> bool:
    """Whether `value` is a float of Python's, or NumPy's of the same precision: arithmetic takes one for the other."""
    return type(value) is float or is_numpys_float(value)


def as_float(value: object) -> float:
    """NumPy's float as one of Python's; raises `TypeError` for anything else."""
    if is_numpys_float(value):
        return float(cast(float, value))
    raise TypeError(f"a float is expected, found a {type(value).__name__}")


def as_pythons(value: Any) -> Any:
    """A number of NumPy's as one of Python's; another one as it is."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def numpys_class(cls: type) -> type:
    """The class of NumPy's numbers that are in the precision of Python's of this class."""
    numpy = sys.modules["numpy"]
    found: type = {bool: numpy.bool_, int: numpy.int64, float: numpy.float64}[cls]
    return found


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


def meet_numpys(symbol: Any, ufunc: Any, method: str, *operands: Any, **options: Any) -> Any:
    """What NumPy computes of a symbolic number: where it is computed in the same precision, what Python's operator gives, as
    one of NumPy's numbers."""
    numpy = sys.modules["numpy"]
    beside = []
    for given in operands:
        if isinstance(given, (numpy.generic, numpy.ndarray)):
            if given.ndim or not (given.dtype == numpy.float64 or given.dtype.kind in "biu"):
                raise _met(f"a number of type {given.dtype} meets one that is a symbol while the program is traced")
            number = given[()]
            if isinstance(symbol, torch.SymFloat):
                number = numpy.float64(number)
            elif not isinstance(number, (numpy.float64, numpy.int64)) or (
                ufunc is numpy.power and number.dtype.kind == "i"
            ):
                # In fewer bits; or where NumPy raises, and Python gives a float.
                return ufunc(
                    *(int(other) if isinstance(other, torch.SymInt) else other for other in operands), **options
                )
            given = symbol.node.beside(number)
        beside.append(given)
    if method != "__call__" or options or ufunc.__name__ not in _OPERATORS:
        raise _met(f"NumPy's {ufunc.__name__} is given a number that is a symbol while the program is traced")
    if not any(isinstance(given, (numpy.generic, numpy.ndarray)) for given in operands):
        beside[0] = beside[0] * symbol.node.beside(
            numpy.int64(1) if isinstance(symbol, torch.SymInt) else numpy.float64(1)
        )
    return _OPERATORS[ufunc.__name__](*beside)


def _met(why: str) -> Refusal:
    reason = Reason(
        op="number",
        why=f"{why}, and the result would be rounded in another way",
        advice="keep the optimizer's numbers as Python floats: float(...)",
        where=user_location(),
    )
    return Refusal(reason)

"""NumPy's numbers beside symbolic ones: which of its floats is as good as Python's, and what it computes of a symbol.

numpy.cos(step) * lr                 numpy.float64 * SymFloat ─▶ `meet_numpys` ─▶ Python's operator, in the same precision
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, cast

import torch

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
    one of NumPy's numbers; else what it is of the number as it is in this call, which is guarded."""
    numpy = sys.modules["numpy"]
    is_written = method == "__call__" and not options and ufunc.__name__ in _OPERATORS
    if not (is_written and all(_is_as_precise(symbol, ufunc, given) for given in operands)):
        return getattr(ufunc, method)(*map(_eager, operands), **options)
    is_float = isinstance(symbol, torch.SymFloat)
    are_numpys = [isinstance(given, (numpy.generic, numpy.ndarray)) for given in operands]
    beside = [
        symbol.node.beside(numpy.float64(given) if is_float else given[()]) if is_numpys else given
        for given, is_numpys in zip(operands, are_numpys, strict=True)
    ]
    if not any(are_numpys):
        beside[0] = beside[0] * symbol.node.beside(numpy.float64(1) if is_float else numpy.int64(1))
    found = _OPERATORS[ufunc.__name__](*beside)
    return _eager(found) if isinstance(found, torch.SymBool) else found


def _is_as_precise(symbol: Any, ufunc: Any, given: Any) -> bool:
    """Whether NumPy computes what Python does of a symbol and of `given`, and raises what it raises."""
    numpy = sys.modules["numpy"]
    if not isinstance(given, (numpy.generic, numpy.ndarray)):
        return True
    if isinstance(symbol, torch.SymFloat):
        return not given.ndim and (given.dtype == numpy.float64 or given.dtype.kind in "biu")
    return (
        not given.ndim
        and given.dtype in (numpy.float64, numpy.int64)
        and (ufunc is not numpy.power or given.dtype.kind == "f")
    )


def _eager(value: Any) -> Any:
    """A symbolic number as eager has it, which is guarded; anything else as it is."""
    return value.node.eager() if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value

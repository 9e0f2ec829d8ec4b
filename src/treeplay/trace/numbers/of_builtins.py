"""What Python's builtin functions get for a symbolic number."""

from __future__ import annotations

from types import CodeType
from typing import Any

from treeplay.observe.lines import OURS, TORCH
from treeplay.trace.numbers.scalars import Scalar, scalar_of, symbolic


def rounded(number: Any, ndigits: Any = None) -> Any:
    """What `round` gives of a symbolic integer; what torch has it give, if it is none of ours."""
    scalar = scalar_of(number)
    return number if scalar is None else symbolic(scalar.round(ndigits))


def class_for(number: Any, code: CodeType) -> type | None:
    """The class of the number that a symbolic one stands for, if it is the program that asks; None if it is torch or we."""
    # Without `isinstance`, which asks this function.
    if code.co_filename.startswith((TORCH, OURS)) or type(number.node) is not Scalar:
        return None
    scalar: Scalar = number.node
    return scalar.cls

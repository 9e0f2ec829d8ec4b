"""Arithmetic on numbers: Python's operators, as functions and as text."""

from __future__ import annotations

import math
import operator
from typing import Any

FORMS: dict[Any, str] = {
    operator.add: "{} + {}",
    operator.sub: "{} - {}",
    operator.mul: "{} * {}",
    operator.truediv: "{} / {}",
    operator.pow: "{} ** {}",
    operator.floordiv: "{} // {}",
    operator.mod: "{} % {}",
    operator.neg: "-{}",
    abs: "abs({})",
    float: "float({})",
    round: "round({}, {})",
    operator.eq: "{} == {}",
    operator.ne: "{} != {}",
    operator.lt: "{} < {}",
    operator.le: "{} <= {}",
    operator.gt: "{} > {}",
    operator.ge: "{} >= {}",
}
"""What is computed with numbers, and how that is written of operands."""
COMPARISONS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})


def operand(words: str) -> str:
    """A part of an expression: a minus sign binds less tightly than a power."""
    return f"({words})" if words.startswith("-") else words


def literal(number: float) -> str:
    """A number as a part of an expression: Python has no literal for infinities, nor for what is no number."""
    is_written = isinstance(number, int) or math.isfinite(number)
    return operand(repr(number) if is_written else f"float('{number}')")

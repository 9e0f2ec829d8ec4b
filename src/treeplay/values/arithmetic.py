"""Arithmetic on numbers: Python's operators, as functions and as text."""

from __future__ import annotations

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

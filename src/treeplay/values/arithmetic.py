"""Arithmetic on numbers: Python's operators and functions of `math`, as functions and as text."""

from __future__ import annotations

import math
import operator
from typing import Any

_OF_ONE = "sqrt exp expm1 log log2 log10 log1p sin cos tan tanh sinh cosh asin acos atan fabs floor ceil trunc degrees radians"
ASKING = frozenset({math.isfinite, math.isinf, math.isnan, math.isclose})
"""Functions of `math` of which each has an outcome, as a comparison has."""
FUNCTIONS: dict[Any, str] = {
    **{getattr(math, name): f"math.{name}({{}})" for name in _OF_ONE.split()},
    **{function: f"math.{function.__name__}({{}})" for function in ASKING - {math.isclose}},
    **{
        function: f"math.{function.__name__}({{}}, {{}})"
        for function in (math.pow, math.atan2, math.fmod, math.copysign, math.isclose)
    },
}
"""Functions of `math`, and how a call is written: `math` is a name in all code that is generated."""

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
    **FUNCTIONS,
}
"""What is computed with numbers, and how that is written of operands."""
CALLS = frozenset({abs, float, round, *FUNCTIONS})
"""Of these the ones that are calls, which need no parentheses around them."""
COMPARISONS = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge})
DIVISIONS = frozenset({operator.truediv, operator.floordiv, operator.mod})
PARTIAL = frozenset({*DIVISIONS, operator.pow, round, *FUNCTIONS})
"""Of some numbers, Python cannot compute these."""
NOT_COMPUTED = (ArithmeticError, ValueError)
"""What it raises there."""


def operand(words: str) -> str:
    """A part of an expression: a minus sign binds less tightly than a power."""
    return f"({words})" if words.startswith("-") else words


def literal(number: float) -> str:
    """A number as a part of an expression: Python has no literal for infinities, nor for what is no number."""
    is_written = isinstance(number, int) or math.isfinite(number)
    return operand(repr(number) if is_written else f"float('{number}')")

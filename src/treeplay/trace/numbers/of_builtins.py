"""What Python's builtin functions, and those of `math`, get for a symbolic number."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

from treeplay.observe.lines import OURS, TORCH
from treeplay.torch_seam.dynamo import skip_code
from treeplay.torch_seam.patched import Shared, all_wanted, without_stand_in
from treeplay.torch_seam.symbols import (
    as_known,
    classes_asked,
    divided_as_known,
    floats_divided,
    integers_rounded,
    numpy_asks,
    unlogged,
)
from treeplay.trace.numbers.numpy_numbers import meet_numpys
from treeplay.trace.numbers.scalars import Scalar, scalar_of, symbolic
from treeplay.trace.survey.found import Survey
from treeplay.values.arithmetic import FUNCTIONS


def rounded(number: Any, ndigits: Any = None) -> Any:
    """What `round` gives of a symbolic integer; what torch has it give, if it is none of ours."""
    scalar = scalar_of(number)
    return number if scalar is None else symbolic(scalar.round(ndigits))


def divided(one: Any, other: Any) -> Any:
    """`one // other`, of which one is symbolic, as Python computes it."""
    of = [scalar_of(number) for number in (one, other)]
    mine = of[0] or of[1]
    if mine is None:
        return divided_as_known(one, other)
    first, second = (
        mine.fixed(as_known(number)) if scalar is None else scalar
        for number, scalar in zip((one, other), of, strict=True)
    )
    return symbolic(first.computed(operator.floordiv, second))


def class_for(number: Any, code: CodeType) -> type | None:
    """The class of the number that a symbolic one stands for, if it is the program that asks; None if it is torch or we."""
    # Without `isinstance`, which asks this function.
    if code.co_filename.startswith((TORCH, OURS)) or type(number.node) is not Scalar:
        return None
    scalar: Scalar = number.node
    return scalar.cls


def _of_math(original: Callable[..., Any], is_wanted: Callable[[], bool]) -> Callable[..., Any]:
    original = without_stand_in(original)  # a program that writes to the module may have put one back

    def of_math(*numbers: Any) -> Any:
        scalars = [scalar for number in numbers if (scalar := scalar_of(number)) is not None] if is_wanted() else []
        if not scalars or not all(isinstance(number, (int, float)) or scalar_of(number) for number in numbers):
            return original(*numbers)
        of = [scalar_of(number) or scalars[0].fixed(number) for number in numbers]
        if len(of) != FUNCTIONS[original].count("{}") or any(each.text is None for each in of):
            return original(*numbers)
        return symbolic(of[0].computed(original, *of[1:]))

    skip_code(of_math.__code__, with_callees=True)  # Dynamo may be at work in another thread
    return of_math


_SHARED = {function.__name__: Shared(math, function.__name__, _of_math) for function in FUNCTIONS}


@contextlib.contextmanager
def numbers_answer(found: Survey, *, has_any: bool) -> Iterator[None]:
    """In the block, symbolic numbers answer Python's builtin functions, NumPy and `math` as the numbers that they stand for.

    Of themselves, functions of `math` ask for the value. Others stand in for them, if the program `has_any` such numbers, and
    but for those that its code reads as values: it may store or compare them."""
    in_math = [shared for name, shared in _SHARED.items() if has_any and name not in found.of_math]
    with (
        numpy_asks(meet_numpys),
        classes_asked(class_for),
        integers_rounded(rounded),
        floats_divided(divided),
        unlogged(),
        all_wanted(in_math),
    ):
        yield

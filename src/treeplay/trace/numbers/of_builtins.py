"""What Python's builtin functions, and those of `math`, get for a symbolic number."""

from __future__ import annotations

import contextlib
import math
import operator
import os
from collections.abc import Callable, Iterator
from functools import partial
from sys import _getframe  # by name: modules are watched while this is called
from types import CodeType
from typing import Any

import torch

from treeplay.observe.lines import OURS, TORCH
from treeplay.torch_seam.dynamo import skip_code
from treeplay.torch_seam.patched import ABSENT, Shared, all_wanted, without_stand_in
from treeplay.torch_seam.symbols import (
    as_known,
    attributes_asked,
    divided_as_known,
    floats_divided,
    integers_rounded,
    methods_answer,
    numpy_asks,
    unlogged,
)
from treeplay.trace.numbers.numpy_numbers import meet_numpys
from treeplay.trace.numbers.scalars import Scalar, guarded_value, scalar_of, symbolic
from treeplay.trace.survey.found import Survey
from treeplay.values.arithmetic import ASKING, COMPARISONS, FUNCTIONS


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


def attribute_for(number: Any, name: str, code: CodeType) -> Any:
    """What the program gets for an attribute of a symbolic number; `ABSENT`, as torch and we do: what the symbol has there.

    Of what Python's own operators ask, and C code that takes symbols, that is right. Of all else it is the number's."""
    # Without `isinstance`, which asks this function.
    is_torchs = code.co_filename.startswith((TORCH, OURS)) and not code.co_filename.startswith(_DISTRIBUTIONS)
    if is_torchs or type(number.node) is not Scalar:
        return ABSENT
    scalar: Scalar = number.node
    if name == "__class__":
        return scalar.cls
    is_asked_of_symbols = name in vars(type(number)) and name.startswith("__")
    if name == "node" or (is_asked_of_symbols and name not in _OF_INSTANCES):
        return ABSENT
    found = getattr(scalar.cls(scalar.value), name)  # which raises what eager raises, if there is none
    return partial(_called, scalar, name) if callable(found) else getattr(scalar.eager(), name)


def _called(scalar: Scalar, method: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(scalar.eager(), method)(*args, **kwargs)


_DISTRIBUTIONS = os.path.join(TORCH, "distributions", "")  # which make tensors of numbers, and of nothing that is none
_OF_INSTANCES = frozenset(("__dict__", "__module__", "__weakref__"))  # which no number has


def _compared(compare: Callable[..., Any], original: Callable[..., Any], number: Any, other: Any) -> Any:
    """The outcome of a comparison, which is known at once: a symbol could not be told from another by `is`, and would be no
    index. torch compares numbers of tensors too, of which the run alone can tell, and takes no outcome of NumPy's class."""
    one = scalar_of(number)
    is_rounded = type(other) is float or (type(other) is int and abs(other) > 2**53)
    two = one.fixed(other) if one is not None and is_rounded else scalar_of(other)
    if one is not None and two is not None and {one.cls, two.cls} == {int, float}:
        # Beside a float, torch rounds an integer to one, and Python does not.
        found: Any = torch.SymBool(one.computed(compare, two))
    else:
        found = original(number, other)
    scalar = scalar_of(found)
    if scalar is None:
        return found
    if _getframe(2).f_code.co_filename.startswith(TORCH):
        return found if scalar.text is None else bool(scalar.decide())
    return scalar.eager()


def _not_pickled(_: Any, number: Any, protocol: int) -> Any:
    """Its bytes would not be those of the number."""
    if scalar_of(number) is None:  # of a compiler in another thread
        return object.__reduce_ex__(number, protocol)
    raise TypeError(f"cannot pickle {type(number).__name__!r} object")


def _formatted(_: Any, number: Any, form: str) -> str:
    return object.__format__(number, form) if scalar_of(number) is None else format(guarded_value(number), form)


def _of_both(fn: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A method of two numbers that is made of others."""
    return lambda _, *numbers: fn(*numbers)


_METHODS: dict[str, Callable[..., Any]] = {
    **{f"__{fn.__name__}__": partial(_compared, fn) for fn in COMPARISONS},
    "__divmod__": _of_both(lambda number, other: (number // other, number % other)),
    "__rdivmod__": _of_both(lambda number, other: (other // number, other % number)),
    # No number is copied.
    "__copy__": lambda _, number: number,
    "__deepcopy__": lambda _, number, memo: number,
    "__reduce_ex__": _not_pickled,
    "__format__": _formatted,
}
"""Methods of symbolic numbers, each given the one that torch has there, if any."""


def _of_math(original: Callable[..., Any], is_wanted: Callable[[], bool]) -> Callable[..., Any]:
    original = without_stand_in(original)  # a program that writes to the module may have put one back

    def of_math(*numbers: Any, **options: Any) -> Any:
        if options:  # of `isclose`
            return original(*numbers, **options)
        scalars = [scalar for number in numbers if (scalar := scalar_of(number)) is not None] if is_wanted() else []
        if not scalars or not all(isinstance(number, (int, float)) or scalar_of(number) for number in numbers):
            return original(*numbers)
        of = [scalar_of(number) or scalars[0].fixed(number) for number in numbers]
        if len(of) != FUNCTIONS[original].count("{}") or any(each.text is None for each in of):
            return original(*numbers)
        found = of[0].computed(original, *of[1:])
        return bool(found.decide()) if original in ASKING else symbolic(found)

    skip_code(of_math.__code__, with_callees=True)  # Dynamo may be at work in another thread
    return of_math


def _encoder(original: Callable[..., Any], is_wanted: Callable[[], bool]) -> Callable[..., Any]:
    """Of `json`, which asks for the class in C, and would take a symbol for an object that it does not know."""

    def c_make_encoder(markers: Any, default: Callable[[Any], Any], *options: Any) -> Any:
        def of_numbers(value: Any) -> Any:
            scalar = scalar_of(value)
            return default(value) if scalar is None else scalar.eager()

        return original(markers, of_numbers if is_wanted() else default, *options)

    return c_make_encoder


def _float(original: Callable[..., Any], is_wanted: Callable[[], bool]) -> Callable[..., Any]:
    """Of code that has a float of whatever it is given, to compute with: it may as well be a symbolic one."""

    def as_float(number: Any) -> Any:
        scalar = scalar_of(number) if is_wanted() else None
        return original(number) if scalar is None else symbolic(scalar.sym_float())

    skip_code(as_float.__code__, with_callees=True)
    return as_float


_SHARED = {
    **{function.__name__: Shared(math, function.__name__, _of_math) for function in FUNCTIONS},
    "clip_grad": Shared("torch.nn.utils.clip_grad", "float", _float),
    "c_make_encoder": Shared("json.encoder", "c_make_encoder", _encoder),
}


@contextlib.contextmanager
def numbers_answer(found: Survey, *, has_any: bool) -> Iterator[None]:
    """In the block, symbolic numbers answer Python's builtin functions, NumPy and `math` as the numbers that they stand for.

    Of themselves, functions of `math` ask for the value. Others stand in for them, if the program `has_any` such numbers, and
    but for those that its code reads as values: it may store or compare them."""
    shared = [each for name, each in _SHARED.items() if has_any and name not in found.of_math]
    with (
        numpy_asks(meet_numpys),
        attributes_asked(attribute_for),
        integers_rounded(rounded),
        floats_divided(divided),
        unlogged(),
        methods_answer(_METHODS),
        all_wanted(shared),
    ):
        yield

"""Exact sameness of immutable values, without asking them: an `__eq__` of somebody's own is never called.

`==` is too generous for what a recording may depend on: `1 == True == 1.0`, `0.0 == -0.0`, `Decimal("1.0") == Decimal("1.00")`,
two times in two time zones; and a class may say anything at all. Here two objects are the same if they are one object, or
values of one immutable type that agree in every part that a program can read. Whatever is not known to be such a value is
the same as itself only.

    exact_key(1), exact_key(True)      (int, 1), (bool, True)
    exact_key((0.0, "a"))              (tuple, ((float, b"..."), (str, "a")))
    exact_key([1])                     this very list
"""

from __future__ import annotations

import dataclasses
import functools
import struct
import sys
from collections.abc import Callable, Hashable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import BuiltinFunctionType, MethodType, MethodWrapperType
from typing import Any

import torch

from treeplay.values.kinds import module_of
from treeplay.values.structure import is_namedtuple

_AS_THEY_ARE = frozenset({int, bool, str, bytes, type(None)})
"""Types whose `==` is exact among values of the very type."""


class Itself:
    """An object as a part of a key: equal to itself, and kept, so that no other takes its place in memory."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Itself and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"<this {type(self.value).__name__}>"


def is_same(a: Any, b: Any) -> bool:
    """Whether `a` and `b` are one object, or exactly the same value of one immutable type."""
    if a is b:
        return True
    cls = type(a)
    if cls is not type(b):
        return False
    if cls in _AS_THEY_ARE:
        return bool(a == b)
    return exact_key(a) == exact_key(b)


def is_value(value: Any) -> bool:
    """Whether `value` is known to be immutable: another object can be the same."""
    return type(exact_key(value)) is not Itself


def components(value: Any) -> list[Any] | None:
    """What an immutable value holds, or a method is bound to, any of which may be mutable; None for one that holds nothing."""
    cls = type(value)
    if cls in (MethodType, BuiltinFunctionType, MethodWrapperType):
        return [value.__self__]
    if cls is slice:
        return [value.start, value.stop, value.step]
    if cls is frozenset:
        return list(value)
    if cls in (tuple, torch.Size) or (is_namedtuple(cls) and not getattr(cls, "__dictoffset__", 0)):
        return [*tuple.__iter__(value)]
    is_frozen = _parts_of(cls) is _fields
    return [entry for _, entry in _held_in(value)] if is_frozen else None


def exact_key(value: Any) -> Hashable:
    """What is equal for `value` and whatever `is_same`, and for nothing else."""
    cls = type(value)
    if cls in _AS_THEY_ARE:
        return cls, value
    parts = _PARTS.get(cls) or _parts_of(cls)
    return Itself(value) if parts is None else (Itself(cls), parts(value))


Parts = Callable[[Any], Hashable]
_UNSET = object()  # stands for a field without a value


def _keys(values: Iterable[Any]) -> Hashable:
    return tuple(map(exact_key, values))


def _datetime(value: Any) -> Hashable:
    # Without its zone: with it, one moment in two zones is equal. `==` does not look at the fold.
    return value.replace(tzinfo=None, fold=0), value.fold, exact_key(value.tzinfo)


_PARTS: dict[type, Parts] = {
    float: lambda value: struct.pack("d", value),  # tells 0.0 from -0.0, and takes a NaN for itself
    complex: lambda value: struct.pack("dd", value.real, value.imag),
    tuple: _keys,
    torch.Size: _keys,
    frozenset: _keys,  # in their order, which a program may follow
    slice: lambda value: _keys((value.start, value.stop, value.step)),
    range: lambda value: _keys((value.start, value.stop, value.step)),  # range(0) == range(1, 1)
    Fraction: lambda value: _keys((value.numerator, value.denominator)),
    Decimal: lambda value: value.as_tuple(),
    datetime: _datetime,
    time: _datetime,
    date: lambda value: value.toordinal(),
    timedelta: lambda value: (value.days, value.seconds, value.microseconds),
    timezone: lambda value: (value.utcoffset(None), value.tzname(None)),
    torch.device: lambda value: (value.type, value.index),
    # Made anew each time they are looked up. Of the latter two `==` and `hash` compare the owner by identity.
    MethodType: lambda value: (Itself(value.__self__), exact_key(value.__func__)),
    BuiltinFunctionType: lambda value: value,
    MethodWrapperType: lambda value: value,
}


def _parts_of(cls: type) -> Parts | None:
    """How the values of a class that is not in the table are taken apart; None for one that is not known to be immutable."""
    if _is_of_numpy(cls):
        return _numpy_scalar
    if is_namedtuple(cls) and not getattr(cls, "__dictoffset__", 0):
        return _items_of_tuple
    own: Any = vars(cls).get("__dataclass_params__")
    return _fields if own is not None and own.frozen and not _goes_by_address(cls) else None


def _goes_by_address(cls: Any) -> bool:
    """Whether two objects of a class with the same in them differ by `==` or as keys, as those of `dataclass(eq=False)` do."""
    return cls.__eq__ is object.__eq__ or cls.__hash__ is object.__hash__


def _is_of_numpy(cls: type) -> bool:
    numpy = sys.modules.get("numpy")
    # A record is mutable, and the classes of others that derive from a scalar may be.
    return (
        numpy is not None
        and issubclass(cls, numpy.generic)
        and module_of(cls) == "numpy"
        and not issubclass(cls, numpy.void)
    )


def _numpy_scalar(value: Any) -> Hashable:
    return value.dtype.str, value.tobytes()  # the unit of a time is in its dtype


def _items_of_tuple(value: Any) -> Hashable:
    return _keys(tuple.__iter__(value))


def _fields(value: Any) -> Hashable:
    return tuple((name, exact_key(entry)) for name, entry in _held_in(value))


def _held_in(value: Any) -> Iterable[tuple[str, Any]]:
    """The fields of a frozen dataclass, and whatever else was put into it; results that it caches follow from these."""
    cls = type(value)
    held = {field.name: _held(value, field.name) for field in dataclasses.fields(cls)}
    for name, entry in (object.__getattribute__(value, "__dict__") if cls.__dictoffset__ else {}).items():
        if name not in held and not isinstance(getattr(cls, name, None), functools.cached_property):
            held[name] = entry
    return held.items()


def _held(value: Any, name: str) -> Any:
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return _UNSET

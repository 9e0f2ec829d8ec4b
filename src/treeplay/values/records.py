"""Records: objects of dataclasses that are their fields and no more. Another one with the same in it may do for one, as a tuple
does for a tuple, where nobody asks which object it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from treeplay.values.flatten import container_base, may_open
from treeplay.values.kinds import HEAP, is_frozen, is_hidden, slots_in, table_of

_OF_ANY_OBJECT = object.__basicsize__
_WORD = 8
_TELLING = ("__getattribute__", "__del__")
"""Methods by which a class may tell one object from another with the same in it."""


def is_record(value: Any) -> bool:
    """Whether `value` is such an object: one whose attributes are found as Python finds them, without anything in C."""
    cls = type(value)
    if not dataclasses.is_dataclass(cls) or not may_open(value) or container_base(cls) is not object:
        return False
    bases = [vars(base) for base in cls.__mro__ if base.__flags__ & HEAP]
    if any(name in table for table in bases for name in _TELLING) or not any("__repr__" in table for table in bases):
        return False  # without a `__repr__` its text has its address
    slots = [(base, name) for base in cls.__mro__ for name in slots_in(base)]
    has_tables = sum(offset > 0 for offset in (cls.__dictoffset__, cls.__weakrefoffset__))
    return cls.__basicsize__ == _OF_ANY_OBJECT + _WORD * (len(slots) + has_tables) and not any(
        is_hidden(cls, base, name) for base, name in slots
    )


def held_in_record(record: Any) -> Iterator[tuple[str, Any]]:
    """What a record holds, by name: what is in its dictionary, in that order, and in slots that are filled."""
    yield from (table_of(record) or {}).items()
    for base in type(record).__mro__:
        for name in slots_in(base):
            try:
                yield name, vars(base)[name].__get__(record)
            except AttributeError:
                continue


def setter_of(holder: Any) -> Callable[[Any, str, Any], None]:
    """What assigns an attribute of an object: of a frozen dataclass past its own method, which only raises."""
    return object.__setattr__ if dataclasses.is_dataclass(type(holder)) and is_frozen(holder) else setattr

"""Where CPython keeps what guards compare: found out on objects made for that, on a Python that is known to keep it so."""

from __future__ import annotations

import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from ctypes import c_uint64
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Any

WORD = 8
WATCHERS = 8 if sys.version_info >= (3, 12) else 0
"""How many of the lowest bits of a dictionary's version say who watches it."""

_MANAGED_DICT = (
    1 << 4
)  # among the flags of a class whose objects have the dictionary of their attributes in front of them
_MANAGED = -3 * WORD


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """At which offsets, in bytes, objects have what guards compare."""

    cls: int  # of any object
    length: int  # of a dictionary: how many entries it has
    version: int
    size: int  # of a list; where its elements are comes next
    code: int
    defaults: int
    keywords: int
    order: int  # of a class: its method resolution order
    content: int  # of a cell

    def place_of_attributes(self, cls: type) -> int | None:
        """Where an object of this class has the dictionary of its attributes; None if that is not known."""
        if cls.__flags__ & _MANAGED_DICT:
            return _MANAGED
        return cls.__dictoffset__ if cls.__dictoffset__ > 0 else None

    @classmethod
    def of_this_python(cls) -> ObjectLayout | None:
        """The layout; None for a Python that is not known, whose dictionaries have no version, or that keeps it elsewhere."""
        if not is_known_python():
            return None
        functions = [_example_function(number) for number in range(3)]
        lists = [[0] * 5, [0] * 9]
        for found in lists:
            found.append(1)  # from now on it has room for more than it has
        try:
            return cls(
                cls=_place([(value, id(type(value))) for value in ({}, 1.5, object(), ())]),
                length=_place([(dict.fromkeys(range(size)), size) for size in (3, 7, 11)]),
                version=_place_of_version(),
                size=_place([(found, len(found)) for found in lists]),
                code=_place([(one, id(one.__code__)) for one in functions]),
                defaults=_place([(one, id(one.__defaults__)) for one in functions]),
                keywords=_place([(one, id(one.__kwdefaults__)) for one in functions]),
                order=_place([(one, id(one.__mro__)) for one in (ObjectLayout, bool, c_uint64)]),
                content=_place([(CellType(one), id(one)) for one in functions]),
            )
        except ValueError:
            return None


def word_at(address: int) -> int:
    """The word at an address in an object that is alive."""
    return c_uint64.from_address(address).value


def is_known_python() -> bool:
    """Whether this Python is one of those whose objects are known."""
    is_usual = sys.implementation.name == "cpython" and struct.calcsize("P") == WORD and sys.byteorder == "little"
    # Debug builds and those without the GIL have more words in each object.
    has_more = hasattr(sys, "gettotalrefcount") or sysconfig.get_config_var("Py_GIL_DISABLED")
    return is_usual and not has_more and (3, 11) <= sys.version_info < (3, 13)


def _words_of(value: Any) -> list[int]:
    return [word_at(id(value) + at) for at in range(0, type(value).__basicsize__, WORD)]


def _place(examples: Sequence[tuple[Any, int]]) -> int:
    """The one offset at which each of these objects has its word. Raises `ValueError` unless there is one."""
    (place,) = set.intersection(
        *({at * WORD for at, word in enumerate(_words_of(value)) if word == wanted} for value, wanted in examples)
    )
    return place


def _example_function(number: int) -> FunctionType:
    scope: dict[str, Any] = {"number": number}
    exec("def example(a=(number,), *, b=(number,)): return a, b", scope)
    made: FunctionType = scope["example"]
    return made


def _place_of_version() -> int:
    """The one offset at which each kind of change gives a dictionary another word."""
    (place,) = set.intersection(*map(_changed_places, _changes()))
    return place


def _changed_places(change: Callable[[dict[str, Any]], object]) -> set[int]:
    class Example:
        pass

    example: Any = Example()
    example.a, example.b = 1, 2
    before = _words_of(vars(example))
    change(vars(example))
    now = _words_of(vars(example))
    return {
        at * WORD for at, (old, new) in enumerate(zip(before, now, strict=True)) if old >> WATCHERS != new >> WATCHERS
    }


def _changes() -> Iterator[Callable[[dict[str, Any]], object]]:
    yield lambda table: table.update(a=2)
    yield lambda table: table.__setitem__("c", 3)
    yield lambda table: table.__delitem__("a")
    yield lambda table: table.pop("b")
    yield lambda table: table.popitem()
    yield lambda table: table.clear()
    yield lambda table: table.setdefault("c", 3)
    yield lambda table: table.__ior__({"b": 3})

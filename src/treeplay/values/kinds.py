"""What an object is, by its class alone. No question goes to the object itself, which may be a proxy of something that is gone,
or answer by raising: whoever looks through everything that a program can reach meets such objects too.
"""

from __future__ import annotations

import collections
import io
import os
import sys
import threading
from collections.abc import Iterator
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""The classes of plain values."""
MUTABLE_CONTAINERS = (dict, list, set, collections.deque)
CONTAINERS = (*MUTABLE_CONTAINERS, tuple, frozenset)
HEAP = 1 << 9  # Py_TPFLAGS_HEAPTYPE
"""The flag of classes that Python code made, or an extension in the same way."""


def is_a(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """As `isinstance`, without asking `value` for its `__class__`."""
    return issubclass(type(value), kinds)


def numpys(*names: str) -> tuple[type, ...]:
    """These classes of NumPy's; none as long as nobody has imported it."""
    numpy = sys.modules.get("numpy")
    return tuple(getattr(numpy, name) for name in names) if numpy is not None else ()


_MAKING = ("builtins", "abc")
"""What a class says if code without a `__name__` makes it, or `type(name, bases, table)` of an abstract base."""


def module_of(cls: type) -> str:
    """The name of the module that a class says it is from; empty for one that says none, or only says where it was made."""
    found = getattr(cls, "__module__", "")
    if not is_a(found, str):
        return ""
    is_made_there = found in _MAKING and cls.__flags__ & HEAP and vars(sys.modules[found]).get(cls.__name__) is not cls
    return "" if is_made_there else found


def is_iterator(value: Any) -> bool:
    """Whether items can be taken from `value`, and are gone then. Proxies have the methods of all."""
    return hasattr(type(value), "__next__") and hasattr(type(value), "__iter__")


def gives_items_in_python(cls: type) -> bool:
    """Whether the items of an iterator come from code in Python, which keeps where it is in attributes. The iterators of the
    standard library's extensions do not, whose classes look as if Python code had made them from Python 3.12 on."""
    giving = [vars(base)["__next__"] for base in cls.__mro__ if "__next__" in vars(base)]
    return all(is_a(method, FunctionType) for method in giving)


_QUEUES = frozenset(
    {
        "queue",
        "_queue",
        "multiprocessing.queues",
        "multiprocessing.connection",
        "asyncio.queues",
        "socket",
        "_socket",
    }
)
_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO)
_STDLIB = os.path.dirname(os.__file__) + os.sep


def hands_items_out(value: Any) -> bool:
    """Whether `value` is a queue, an end of a pipe, a socket or a file to be read: what is taken from it is gone."""
    file = next((base for base in _FILES if is_a(value, base)), None)
    if file is not None:
        return not file.closed.__get__(value) and bool(file.readable(value))
    return any(module_of(base) in _QUEUES and _is_of_stdlib(base) for base in type(value).__mro__)


def _is_of_stdlib(cls: type) -> bool:
    """Whether a class is the standard library's, and none of somebody's whose module has the same name."""
    module = sys.modules.get(module_of(cls))
    file = getattr(module, "__file__", None)
    return getattr(module, cls.__name__, None) is cls and (file is None or file.startswith(_STDLIB))


def table_of(value: Any) -> dict[str, Any] | None:
    """The dictionary of an object's attributes, without asking its class; None if there is none. Of a `threading.local` what
    this thread has there."""
    if is_a(value, threading.local):  # which has another one in each thread, behind the one that its class tells of
        of_thread: dict[str, Any] = vars(value)
        return of_thread
    try:
        table = object.__getattribute__(value, "__dict__")
    except Exception:  # `__dict__` may be a property of the class's
        return None
    return table if isinstance(table, dict) else None


def keeps_table(cls: type) -> bool:
    """Whether objects of a class have their attributes where Python keeps them: `__dict__` may be a property."""
    found = next((vars(base)["__dict__"] for base in cls.__mro__ if "__dict__" in vars(base)), None)
    return is_a(found, GetSetDescriptorType)


PLAIN_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
"""Dictionaries of Python's own classes, in which `[]` finds and puts entries and does nothing else."""


def slots_in(cls: type) -> list[str]:
    """The slots that one class adds to its objects, private ones by the names that they have there: `__slots__` itself has them
    as they are written."""
    entries = list(vars(cls).items())
    return [name for name, entry in entries if is_a(entry, MemberDescriptorType) and name not in _OFFSETS]


def slots_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object keeps beside its dictionary of attributes: its slots; of an exception also what Python's classes have.
    Beside a name, the slot's descriptor where the object has something else under that name, as a property."""
    cls, is_exception = type(value), is_a(value, BaseException)
    for base in cls.__mro__:
        for name in slots_in(base) if base.__flags__ & HEAP or is_exception else ():
            yield name, vars(base)[name] if is_hidden(cls, base, name) else None
    yield from (("args", None), ("__cause__", None), ("__context__", None)) if is_exception else ()


def has_attributes(value: Any) -> bool:
    """Whether an object has a dictionary or slots for attributes of its own."""
    return table_of(value) is not None or any(slots_of(value))


def is_hidden(cls: type, base: type, name: str) -> bool:
    """Whether objects of `cls` have something else under the name of a slot that its base class gives them, as a property."""
    return next(found for found in cls.__mro__ if name in vars(found)) is not base


# By which classes in C, as `functools.partial`, tell Python where in an object something lies.
_OFFSETS = ("__dictoffset__", "__weaklistoffset__", "__vectorcalloffset__")


_BUILTINS: tuple[Any, ...] = (collections.OrderedDict, *CONTAINERS)


def builtin_of(container: Any) -> Any:
    """The class of Python's own that a container is of, or that its class is derived from. By the methods of this one it is
    asked for what it holds: a registry may take other arguments in `get`, a mapping may import packages in `items`."""
    cls = type(container)
    return cls if cls in _BUILTINS else next(kind for kind in _BUILTINS if issubclass(cls, kind))


def items(values: Any) -> list[Any]:
    """What a list, tuple, set, frozenset or deque holds, whatever a subclass has made of its methods."""
    return list(builtin_of(values).__iter__(values))


def is_frozen(record: Any) -> bool:
    """Whether the fields of an object, whose class is a dataclass, cannot be assigned."""
    return bool(type(record).__dataclass_params__.frozen)


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor is where a backward ends. A view whose base was written to since may raise when it is asked: it is the
    result of something."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False

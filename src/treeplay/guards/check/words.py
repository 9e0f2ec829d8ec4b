"""Guards that are a word of memory each: hundreds of them in one call of a C function; Python takes 10 to 50 ns for each.

    Words ─ add_table, add, … ─▶ check() ─▶ `are_the_same` of `words.c`, over pairs of an address and what is there

CPython keeps a dictionary's version, an object's class, each element of a list … as one word (`object_layout.py`).
The C function is compiled in the background when it is first wanted. Until then, and for good without a compiler or on a Python
that is not known, Python compares the same guards by itself (`code.py`); both take the same for a difference.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable
from ctypes import PyDLL, Structure, c_char_p, c_int, c_void_p, py_object
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeplay.codegen.library import address_in, compile_library
from treeplay.guards.check.object_layout import WATCHERS, WORD, ObjectLayout, word_at
from treeplay.locks import after_fork
from treeplay.observe.events import log_event
from treeplay.torch_seam.patched import ABSENT

_SOURCE = Path(__file__).with_name("words.c")
_NO_ARGUMENTS = 4  # as the C API has it
_methods: list[Any] = []  # for good: functions refer to them that the garbage collector may free in any order


class _Method(Structure):
    _fields_ = (("name", c_char_p), ("call", c_void_p), ("flags", c_int), ("doc", c_char_p))


_new_function = ctypes.pythonapi.PyCFunction_NewEx
_new_function.argtypes, _new_function.restype = (c_void_p, py_object, py_object), py_object


@dataclass(frozen=True, slots=True)
class Comparer:
    """What compares words in this process: where they are, and the function."""

    layout: ObjectLayout
    method: _Method

    @classmethod
    def compiled(cls) -> Comparer | None:
        """Compile it, in a tenth of a second; None where that cannot be done."""
        layout = ObjectLayout.of_this_python()
        if layout is None:
            return None
        try:
            library = compile_library(_SOURCE, PyDLL)
        except OSError as error:
            log_event("guards", f"they are compared one by one: {error}")
            return None
        method = _Method(b"are_the_same", address_in(library, "are_the_same"), _NO_ARGUMENTS, None)
        _methods.append(method)
        return cls(layout, method)


class Words:
    """Words of memory that are to stay what they are. A dictionary counts as it is when it is added."""

    def __init__(self, comparer: Comparer) -> None:
        self._comparer = comparer
        self._layout = comparer.layout
        self._versions: list[tuple[int, int]] = []
        self._others: list[tuple[int, int]] = []
        self._elements: list[tuple[int, int]] = []
        self._objects: list[Any] = []
        self.held: tuple[Any, ...] = ()  # the objects that `check` compares, which it keeps

    def add_table(self, table: dict[Any, Any]) -> None:
        """A dictionary, with all of its entries."""
        at = self._address(table) + self._layout.version
        self._versions.append((at, word_at(at)))

    def add_empty(self, table: dict[Any, Any]) -> None:
        """A dictionary that has no entries."""
        self._others.append((self._address(table) + self._layout.length, 0))

    def add(self, of: Any, what: str, value: Any) -> None:
        """What an object refers to, as `ObjectLayout` calls it; `ABSENT` for nothing."""
        self._add(of, getattr(self._layout, what), value)

    def add_attributes(self, value: Any, table: dict[str, Any]) -> bool:
        """The dictionary of an object's attributes; False for an object that has it elsewhere than most."""
        at = self._layout.place_of_attributes(type(value))
        if at is None or word_at(id(value) + at) != id(table):
            return False
        self._add(value, at, table)
        return True

    def add_list(self, found: list[Any], length: int, elements: Iterable[tuple[int, Any]]) -> None:
        """A list of this length, and elements of it by position."""
        size = self._address(found) + self._layout.size
        begins = word_at(size + WORD)  # elsewhere, once the list has got another piece of memory
        self._others += [(size, length), (size + WORD, begins)]
        self._elements += [(begins + at * WORD, self._address(value)) for at, value in elements]

    def check(self, otherwise: Callable[[], bool]) -> Callable[[], bool] | None:
        """A function that tells whether all words are as they were, and else what `otherwise` says; None if some are not."""
        self.held = tuple(self._objects)
        pairs = (*self._versions, *self._others, *self._elements)
        counts = len(self._versions), len(self._others), len(self._elements)
        numbers = (WATCHERS, *counts, *(number for pair in pairs for number in pair))
        plan = struct.pack(f"={len(numbers)}Q", *numbers)
        return self._function(plan, otherwise) if self._function(plan, never)() else None

    def _function(self, plan: bytes, otherwise: Callable[[], bool]) -> Callable[[], bool]:
        made: Callable[[], bool] = _new_function(
            ctypes.byref(self._comparer.method), (plan, otherwise, self.held), __name__
        )
        return made

    def _add(self, of: Any, place: int, value: Any) -> None:
        self._others.append((self._address(of) + place, 0 if value is ABSENT else self._address(value)))

    def _address(self, value: Any) -> int:
        """The address of an object, which is held."""
        self._objects.append(value)
        return id(value)


class Background:
    """Compiles once a process, in a thread of its own, when somebody first asks."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._found: Comparer | None = None
        self.is_done = False

    def comparer(self) -> Comparer | None:
        """What compares words; None until it is compiled, and for good where it cannot be: then `is_done`."""
        if self._thread is None and not self.is_done:
            self._thread = threading.Thread(target=self.compile, name="treeplay compiles guards", daemon=True)
            self._thread.start()
        return self._found

    def compile(self) -> None:
        """Compile it in this thread."""
        try:
            self._found = self._found or Comparer.compiled()
        finally:
            self.is_done = True

    def renew(self) -> None:
        """A forked child has no such thread."""
        self._thread = None


def never() -> bool:
    """The answer of guards that hold nothing."""
    return False


background = Background()
after_fork(background.renew)

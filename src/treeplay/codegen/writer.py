"""The text of a generated function while it grows: lines at the present indentation, and the objects that they name.

text = Writer()
with text.block("def run(args):"):
    text.unpack(("x", "y"), "args")
    text.add(f"return {text.constant(scale)} * x - y")
text.source("example", entry="run")
"""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from treeplay.errors import InternalError

_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Source:
    """Python text that defines the function `entry`; `names` are the globals it needs beside the builtins.

    `name` says what it is (`aten`); a loader makes a unique file name of it.
    """

    name: str
    text: str
    names: dict[str, Any] = field(repr=False)
    entry: str
    launched: int = 0  # the number of the last line of its launch, in a function that launches something

    def __str__(self) -> str:
        return f"{self.name}: {self.text.count(chr(10))} lines, {len(self.names)} names"


class Writer:
    """One per generated function. An object is named once: the same one has one name, an equal one has its own."""

    def __init__(self, **names: Any) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}  # keeps each object alive, so that its identity is its own
        self.taken: set[str] = set()
        self._named: dict[int, str] = {}
        self._constants = 0
        self._numbers: dict[str, int] = {}
        self._indent = ""
        for name, value in names.items():
            self.use(name, value)

    def source(self, name: str, *, entry: str, launched: int = 0) -> Source:
        """The finished text; `name` says what it is, `entry` the function to call, `launched` the last line of its launch."""
        return Source(name, "\n".join(self.lines) + "\n", self.names, entry, launched)

    # --- lines ----------------------------------------------------------------------------------------------

    def add(self, *lines: str) -> None:
        """Add lines at the present indentation."""
        self.lines += [self._indent + line for line in lines]

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head`, such as `try:`, and indent what is added within."""
        self.add(head)
        before = self._indent
        self._indent += _INDENT
        try:
            yield
        finally:
            self._indent = before

    @contextlib.contextmanager
    def aside(self) -> Iterator[list[str]]:
        """Collect what is added within in a list of its own, without indentation, instead of adding it."""
        lines, indent = self.lines, self._indent
        self.lines, self._indent = [], ""
        try:
            yield self.lines
        finally:
            self.lines, self._indent = lines, indent

    def unpack(self, names: Iterable[str], value: str) -> None:
        """Take a list or tuple apart; nothing to do without names."""
        names = list(names)
        if names:
            self.add(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {value}")

    # --- names ----------------------------------------------------------------------------------------------

    def use(self, name: str, value: Any) -> str:
        """Let `name` stand for an object; gives the name."""
        if self.names.setdefault(name, value) is not value:
            raise InternalError(f"generated code would call two objects `{name}`")
        self.taken.add(name)
        self._named.setdefault(id(value), name)
        return name

    def constant(self, value: Any) -> str:
        """A numbered name for an object."""
        name = self._named.get(id(value))
        if name is None:
            name = self.use(f"c{self._constants}", value)
            self._constants += 1
        return name

    def name(self, value: Any, wish: str) -> str:
        """A name like `wish` for an object."""
        name = self._named.get(id(value))
        if name is None:
            name = self.use(self.fresh(wish), value)
        return name

    def fresh(self, wish: str) -> str:
        """A name like `wish` that nothing else has."""
        base = re.sub(r"\W", "_", wish)
        base = f"_{base}" if keyword.iskeyword(base) or base[:1].isdigit() else base
        name, number = base, self._numbers.get(base, 0)
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self._numbers[base] = number
        self.taken.add(name)
        return name

    def literal(self, value: Any) -> str:
        """Text for a Python value: itself where that is exact, else a constant."""
        if value is None or type(value) is bool or type(value) is int or type(value) is str:
            return repr(value)
        return self.constant(value)


def tuple_of(items: Iterable[str]) -> str:
    """A tuple display."""
    items = list(items)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def list_of(items: Iterable[str]) -> str:
    """A list display."""
    return f"[{', '.join(items)}]"

"""Walk: which objects a walk from a run has met, which of them wait to be looked at, and what was found so far.

In come values, each with the place where it was found (`enter`); each object is taken in once. `namespaces`,
`functions`, `objects`, `containers` and `holders` say what follows from an object of their kind: they enter
what it leads to and add guards to `dependencies`. `reach.Reach` goes on until nothing waits. A walk ends with the trace; what
is kept of it are the dependencies.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Container, Iterable
from typing import Any

from treeplay.guards.conditions import Asked
from treeplay.guards.containers import Table
from treeplay.guards.dependencies import Dependencies
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.kinds import HARMLESS, VALUES
from treeplay.values.kinds import is_a

_MOST_OBJECTS = 200_000


class TooMuch(Exception):
    """The program reaches more objects than can be guarded."""


class Walk:
    """What was read, what was met, and what follows."""

    def __init__(self, reads: Reads, *, also_assigned: bool = False) -> None:
        self.reads = reads
        self.also_assigned = also_assigned  # no replay assigns what was assigned: it has to be there already
        self.names = reads.all_names()
        self.dependencies = Dependencies()
        self.large: list[tuple[Any, str]] = []  # memory that takes too long to compare on each call
        self.iterators: list[tuple[Any, str]] = []
        # By `id`, with the object itself: as long as it lives nothing else gets its `id`.
        self.seen: dict[int, Any] = {}
        self.twice: set[int] = set()  # what was met in more than one place
        self.weak: set[int] = set()  # what only a weak reference leads to
        self.code_met: set[int] = set()
        self._waiting: collections.deque[tuple[Any, str]] = collections.deque()

    def enter(self, value: Any, label: str) -> None:
        """Follow `value`, which the run read at `label`."""
        if type(value) in VALUES or is_a(value, HARMLESS):
            return
        key = id(value)
        if key in self.seen:
            self.twice.add(key)
            return
        self.seen[key] = value
        self._waiting.append((value, label))

    def follow(self, asked: Asked) -> None:
        """Guard what is asked of an object, and follow the answer."""
        self.dependencies.asked.append(asked)
        self.enter(asked.recorded, asked.label)

    def enter_each(self, values: Iterable[Any], label: str) -> None:
        """Follow the items of a sequence at `label`."""
        for index, value in enumerate(values):
            self.enter(value, f"{label}[{index}]")

    def meet(self, value: Any) -> bool:
        """Take note of a value that is guarded right away; whether it is met for the first time."""
        if id(value) in self.seen:
            return False
        self.seen[id(value)] = value
        return True

    def guard_table(self, table: dict[Any, Any], label: str, but: Container[Any] = ()) -> None:
        """Guard all of a dictionary of attributes, and enter all `but` what is under some names."""
        if self.meet(table):
            self.dependencies.add_table(Table(table, label))
            for name, value in list(table.items()):
                if name not in but:
                    self.enter(value, f"{label}{name}")

    @property
    def is_waiting(self) -> bool:
        """Whether something was entered that nobody has looked at."""
        return bool(self._waiting)

    def next(self) -> tuple[Any, str]:
        """What was entered first of all that waits, and its label; raises `TooMuch`."""
        if len(self.seen) > _MOST_OBJECTS:
            raise TooMuch
        return self._waiting.popleft()

    def ran(self, code: types.CodeType) -> bool:
        """Whether the run may have run `code`."""
        return self.reads.code is None or id(code) in self.reads.code

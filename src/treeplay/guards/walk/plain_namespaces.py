"""Plain namespaces on a walk: `types.SimpleNamespace`, whose reads nobody sees, since its class is in C.

Of one the attributes count whose names are in code that ran, present or absent; all of them, where that code may have read some
without a name: by a computed one, or by taking the namespace whole.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection
from typing import Any

from treeplay.guards.containers import Table
from treeplay.guards.reads.taken_whole import asks_whether_equal, takes_whole
from treeplay.guards.walk.walk import Walk
from treeplay.observe.lines import TORCH
from treeplay.values.kinds import is_a, is_iterator


class PlainNamespaces:
    """The plain namespaces that a walk comes to. `may_ask_for_any`: whether code computes names."""

    def __init__(self, walk: Walk, *, may_ask_for_any: bool) -> None:
        self._walk = walk
        # What torch's own code makes text of, or compares, is its own.
        self._ran = [code for code in (walk.reads.code or {}).values() if not code.co_filename.startswith(TORCH)]
        self._is_any_asked_for = may_ask_for_any
        self._counts_whole = may_ask_for_any or walk.reads.code is None or any(map(takes_whole, self._ran))
        self._by_name: list[Table] = []

    def follow(self, table: dict[str, Any], label: str) -> None:
        """Guard what the run may have read of a namespace, whose dictionary this is, and follow it."""
        names = self._walk.names
        if self._counts_whole:
            # An iterator, from which the run took nothing unless code has its name.
            untaken = {
                name
                for name, entry in table.items()
                if is_iterator(entry) and name not in names and not self._is_any_asked_for
            }
            self._walk.guard_table(table, label, untaken)
        elif self._walk.meet(table):
            found = Table(table, label, matters=functools.partial(_is_named, names))
            self._by_name.append(found)
            self._walk.dependencies.add_table(found)
            for name, entry in list(found.recorded.items()):
                self._walk.enter(entry, f"{label}{name}")

    def finish(self, *, may_ask_for_any: bool) -> None:
        """Guard them whole after all where only the end of the walk tells that they have to be."""
        if not self._by_name or not (may_ask_for_any or self._may_be_equal()):
            return
        self._is_any_asked_for, self._counts_whole = may_ask_for_any, True
        tables, self._by_name = self._by_name, []
        for table in tables:
            self._walk.dependencies.tables.remove(table)
            del self._walk.seen[id(table.holder)]
            self.follow(table.holder, table.label)

    def _may_be_equal(self) -> bool:
        """Whether the run may have asked if a namespace is equal to another one, which was there or which it has made."""
        others = sum(is_a(value, types.SimpleNamespace) for value in self._walk.seen.values()) > 1
        return (others or "SimpleNamespace" in self._walk.names) and any(map(asks_whether_equal, self._ran))


def _is_named(names: Collection[str], name: Any) -> bool:
    """Whether code may have asked for an attribute: by a name that it has, or that Python itself has."""
    return not is_a(name, str) or name in names or name[:2] == "__"

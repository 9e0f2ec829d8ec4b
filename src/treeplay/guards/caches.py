"""Caches of functions (`functools.lru_cache`): which entries there are, and the guard over those that a run may have met.

    no limit     the function's dictionary: key ─▶ result                    `Table`, which may grow
    a limit      the function's dictionary: key ─▶ link ─▶ key, result       `CachedResults`, which looks behind the links

They are C's, and only the garbage collector is shown them.
"""

from __future__ import annotations

import gc
from typing import Any

from treeplay.guards.containers import Table
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import table_of
from treeplay.values.same import is_same

_LINK = "_lru_list_elem"


class CachedResults(Table):
    """What a function with a limited cache gave has to be in it still; other entries may be added.

    A cache that is full puts its next entry into the link of the oldest: a link that is in its place tells nothing of the
    result. That is one entry less and one more, so that the dictionary's version does tell."""

    __slots__ = ("_function",)

    def __init__(self, function: Any, table: dict[Any, Any], label: str) -> None:
        self._function = function
        super().__init__(table, label)
        self.may_grow = True

    def content(self, holder: dict[Any, Any]) -> dict[Any, Any]:
        """The results under the keys that count."""
        found = linked(self._function, holder)
        recorded: dict[Any, Any] | None = getattr(self, "recorded", None)
        if recorded is None:
            return dict(found)
        by_key = {id(key): value for key, value in found}
        return {key: by_key[id(key)] if id(key) in by_key else _alike(key, found) for key in recorded}


def cache_guard(function: Any, label: str) -> Table | None:
    """The guard over all that a function's cache holds; None while that is nothing."""
    table = table_of_cache(function)
    if table is None:
        return None
    if is_limited(function):
        return CachedResults(function, table, label)
    guard = Table(table, label)
    guard.may_grow = True
    return guard


def is_limited(function: Any) -> bool:
    """Whether a function's cache drops entries by itself."""
    return function.cache_parameters()["maxsize"] is not None


def table_of_cache(function: Any) -> dict[Any, Any] | None:
    """The dictionary in which a function keeps what it has given; None while it keeps nothing."""
    if not function.cache_info().currsize:
        return None
    tables = [found for found in gc.get_referents(function) if type(found) is dict and found is not table_of(function)]
    if not is_limited(function):
        return tables[0]
    # With a limit, the function refers to each result too, and the dictionary has links from one to the next.
    return next((table for table in tables if table and all(map(_is_link, list(table.values())))), None)


def linked(function: Any, table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and results of a limited cache, whose dictionary is `table`, from the oldest to the latest."""
    # Its own class; key, result and class of each link; the dictionary; and what else it has.
    found = gc.get_referents(function)
    at = 1
    while at + 2 < len(found) and found[at] is not table:
        at += 3
    return [*zip(found[1:at:3], found[2:at:3], strict=True)]


def entries_in(function: Any) -> list[tuple[Any, Any]]:
    """Keys and results in the cache of a function."""
    table = table_of_cache(function)
    if table is None:
        return []
    return linked(function, table) if is_limited(function) else list(table.items())


def results_in(function: Any) -> list[Any]:
    """What the cache of a function holds."""
    return [value for _, value in entries_in(function)]


def _alike(key: Any, found: list[tuple[Any, Any]]) -> Any:
    # An entry that was dropped and came back has a key of its own, a tuple as a rule.
    return next((value for other, value in found if is_same(key, other)), ABSENT)


def _is_link(value: Any) -> bool:
    return type(value).__name__ == _LINK

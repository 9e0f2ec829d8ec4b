"""Caches of functions (`functools.lru_cache`): which entries there are, and the guard over those that a run may have met.

    no limit     the function's dictionary: key ─▶ result                    `Table`, which may grow
    a limit      the function's dictionary: key ─▶ link ─▶ key, result       `CachedResults`, which looks behind the links

They are C's, and only the garbage collector is shown them.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
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

    __slots__ = ("_function", "_links", "_most")

    def __init__(self, function: Any, table: dict[Any, Any], label: str) -> None:
        self._function = function
        self._most: int = function.cache_parameters()["maxsize"]
        self._links = dict(table)  # first: what is read after it has these links, or others
        super().__init__(table, label)
        self.may_grow = True

    def content(self, holder: dict[Any, Any]) -> dict[Any, Any]:
        """The results under the keys that count."""
        recorded: dict[Any, Any] | None = getattr(self, "recorded", None)
        links = self._links
        # One that is not full yet, and has its links still, was not emptied and so never full: none was used again.
        is_filling = recorded is not None and len(holder) < self._most
        if is_filling and all(key in links and holder.get(key) is links[key] for key in recorded or ()):
            return dict(recorded or {})
        found = linked(self._function, holder)
        if recorded is None:
            return dict(found)
        by_key = {id(key): value for key, value in found}
        return {key: by_key[id(key)] if id(key) in by_key else _alike(key, found) for key in recorded}


@dataclass(frozen=True, slots=True)
class Filled:
    """A function with a cache, what this held at a moment, and how often it had been asked by then."""

    function: Any
    table: dict[Any, Any] | None
    entries: list[tuple[Any, Any]]
    hits: int
    misses: int

    @staticmethod
    def now(function: Any) -> Filled:
        """As it is."""
        asked = function.cache_info()
        return Filled(function, table_of_cache(function), entries_in(function), asked.hits, asked.misses)

    def lacks_what_it_gave(self) -> bool:
        """Whether the function may have given, since then, an entry that is not in its cache any more."""
        asked, left = self.function.cache_info(), {id(key): value for key, value in entries_in(self.function)}
        if all(id(key) in left and left[id(key)] is value for key, value in self.entries):
            return False
        # Each new entry was a miss, unless it was cleared in between, which sets the counts to zero.
        return bool(asked.hits != self.hits or asked.misses < self.misses + self._added(left))

    def put_back(self) -> None:
        """Put entries back that are gone since, where the cache has no limit: others are linked outside of Python."""
        if self.table is not None and not is_limited(self.function):
            for key, value in self.entries:
                if self.table.get(key, ABSENT) is not value:
                    self.table[key] = value

    def _added(self, left: dict[int, Any]) -> int:
        before = {id(key): value for key, value in self.entries}
        return sum(1 for key, value in left.items() if key not in before or before[key] is not value)


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


def _alike(key: Any, found: list[tuple[Any, Any]]) -> Any:
    # An entry that was dropped and came back has a key of its own, a tuple as a rule.
    return next((value for other, value in found if is_same(key, other)), ABSENT)


def _is_link(value: Any) -> bool:
    return type(value).__name__ == _LINK

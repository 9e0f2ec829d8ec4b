"""Caches of functions (`functools.lru_cache`): which entries there are, and the guard over those that a run may have met.

    no limit     the function's dictionary: key ─▶ result                    `Table`, which may grow
    a limit      the function's dictionary: key ─▶ link ─▶ key, result       `CachedResults`, which looks behind the links

They are C's, and only the garbage collector is shown them.
"""

from __future__ import annotations

import functools
import gc
import types
from dataclasses import dataclass
from typing import Any

from treeplay.guards.containers import Table
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import is_a, table_of
from treeplay.values.same import is_same

_LINK = "_lru_list_elem"
_MOST_WRAPPERS = 32  # one around the other


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
    """A function with a cache, what this held at a moment, and how often it had lacked by then what was asked for."""

    function: Any
    entries: list[tuple[Any, Any]]
    misses: int

    @staticmethod
    def now(function: Any) -> Filled:
        """As it is."""
        return Filled(function, entries_in(function), function.cache_info().misses)

    def has_missed(self) -> bool:
        """Whether it was asked since then for what it lacked, or was emptied."""
        return bool(self.function.cache_info().misses != self.misses)

    def lacks_an_entry(self) -> bool:
        """Whether it held one then that is not in it any more."""
        left = {id(key): value for key, value in entries_in(self.function)}
        return not all(id(key) in left and left[id(key)] is value for key, value in self.entries)

    def put_back(self) -> None:
        """Have it hold what it held then: all of that if it has no limit, and nothing if that was nothing. Else its entries are
        linked outside of Python: none can be put in, and none taken out alone."""
        if is_limited(self.function):
            if not self.entries:
                self.function.cache_clear()
            return
        table, before = table_of_cache(self.function), {id(key) for key, _ in self.entries}
        assert table is not None
        for key in [key for key in table if id(key) not in before]:
            table.pop(key, None)
        if len(table) < len(before):
            table.update(self.entries)


@dataclass(frozen=True, slots=True)
class Room:
    """How much more a limited cache could take at a moment, and how often it had lacked by then what was asked for."""

    misses: int
    left: int

    @staticmethod
    def now(function: Any) -> Room:
        """That of a function's cache as it is."""
        asked = function.cache_info()
        return Room(asked.misses, asked.maxsize - asked.currsize)

    def was_enough(self, function: Any) -> bool:
        """Whether it has taken since then all that it was asked for, and dropped nothing."""
        return 0 <= Room.now(function).misses - self.misses <= self.left


def cache_guard(function: Any, label: str) -> Table | None:
    """The guard over all that a function's cache holds; None while that is nothing."""
    table = table_of_cache(function)
    if not table:
        return None
    if is_limited(function):
        return CachedResults(function, table, label)
    guard = Table(table, label)
    guard.may_grow = True
    return guard


def keeps_results(function: Any) -> bool:
    """Whether a function has room for any result."""
    return bool(function.cache_parameters()["maxsize"] != 0)


def codes_behind(function: Any) -> list[types.CodeType]:
    """The code that runs where a function's cache lacks what it is asked for, as far as it is Python's; none of a class, or of
    an object that can be called."""
    found: list[types.CodeType] = []
    while function is not None and len(found) < _MOST_WRAPPERS:
        found += [function.__code__] if is_a(function, types.FunctionType) else []
        function = _behind(function)
    return found


def is_limited(function: Any) -> bool:
    """Whether a function's cache drops entries by itself."""
    return function.cache_parameters()["maxsize"] is not None


def table_of_cache(function: Any) -> dict[Any, Any] | None:
    """The dictionary in which a function keeps what it has given; None while it has a limit, and keeps nothing."""
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


def _behind(function: Any) -> Any:
    if is_a(function, functools.partial):
        return function.func
    return function.__func__ if is_a(function, types.MethodType) else (table_of(function) or {}).get("__wrapped__")


def _alike(key: Any, found: list[tuple[Any, Any]]) -> Any:
    # An entry that was dropped and came back has a key of its own, a tuple as a rule.
    return next((value for other, value in found if is_same(key, other)), ABSENT)


def _is_link(value: Any) -> bool:
    return type(value).__name__ == _LINK

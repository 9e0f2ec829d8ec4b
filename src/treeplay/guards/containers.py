"""Guards over mutable containers, which may be found in another place of memory later, with the same in it.

Table      a dictionary: of an object's attributes, a module's or a class's, of the program's own
Items      a list or a deque                       Members   a set
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from treeplay.guards.conditions import Comparison, ContainerGuard, differing
from treeplay.observe.shown import shown
from treeplay.torch_seam.dynamo import version_of_table
from treeplay.torch_seam.patched import ABSENT, without_stand_in
from treeplay.values.kinds import builtin_of, is_a, items
from treeplay.values.mismatch import Mismatch
from treeplay.values.same import is_same

# Of the classes themselves: one that is derived from them may have something else there.
_FACTORY: Callable[[Any], Any] = vars(collections.defaultdict)["default_factory"].__get__
_MAXLEN: Callable[[Any], int | None] = vars(collections.deque)["maxlen"].__get__


class Table(ContainerGuard):
    """Entries of a dictionary: all of them, those in `names`, or those that `matters` tells."""

    __slots__ = (
        "compared",
        "is_unordered",
        "matters",
        "may_grow",
        "names",
        "pending",
        "recorded",
        "size",
        "version",
    )

    def __init__(
        self,
        holder: dict[Any, Any],
        label: str,
        names: tuple[str, ...] | None = None,
        matters: Callable[[Any], bool] | None = None,
    ) -> None:
        super().__init__(holder, label)
        self.names = names
        self.matters = matters
        self.may_grow = False  # whether further entries do not matter
        self.is_unordered = False  # whether their order does not matter
        self.compared: dict[Any, Any] = {}  # the entries that were compared last
        self.recorded: dict[Any, Any] = self.content(holder)
        self.version = self.pending = self.size = -1  # a steady one is compared by its version

    @property
    def is_whole(self) -> bool:
        """Whether every entry counts."""
        return self.names is None and self.matters is None

    def content(self, holder: dict[Any, Any]) -> dict[Any, Any]:
        """The entries that count."""
        # By `dict.get`: `[]` makes an entry in a `defaultdict`, and a subclass may do anything in its `get`.
        if self.names is not None:
            return {name: without_stand_in(dict.get(holder, name, ABSENT)) for name in self.names}
        if self.may_grow:
            return {key: dict.get(holder, key, ABSENT) for key in self.recorded}
        entries = builtin_of(holder).items(holder)
        if self.matters is not None:
            entries = ((key, value) for key, value in entries if self.matters(key))
        # As they are while nothing is traced: another thread may have put stand-ins there.
        return {key: own for key, value in entries if (own := without_stand_in(value)) is not ABSENT}

    def factory(self, holder: Any = None) -> Any:
        """What makes the entries that a `defaultdict` lacks: of this one, or of the one that is guarded today."""
        holder = self.holder if holder is None else holder
        return _FACTORY(holder) if is_a(holder, collections.defaultdict) else None

    def order(self) -> tuple[Any, ...]:
        """The keys in the order of today, which an `OrderedDict` keeps beside its entries: to move one is no new version."""
        return (*self.content(self.holder),)

    def differences(self, comparison: Comparison, holder: Any) -> Mismatch | None:
        self.pending = version_of_table(holder)  # first: what another thread writes meanwhile is compared the next time
        if self.factory(holder) is not self.factory(self.holder):
            return differing(f"{self.label}.default_factory", self.factory(self.holder), self.factory(holder))
        now = self.content(holder)
        if self.is_unordered and now.keys() == self.recorded.keys():
            now = {key: now[key] for key in self.recorded}
        self.compared = now
        if len(now) != len(self.recorded) or (self.names is None and not _same_keys(self.recorded, now)):
            return self._other_keys(now)
        for (key, before), found in zip(self.recorded.items(), now.values(), strict=True):
            if not self.is_alike(comparison, key, before, found):
                return comparison.inner or differing(self.label_of(key), before, found)
        return None

    def values(self, entries: Any) -> Iterable[Any]:
        return entries.values()  # type: ignore[no-any-return]

    def now(self) -> Any:
        return self.content(self.holder)

    def _other_keys(self, now: dict[Any, Any]) -> Mismatch:
        for key in now:
            if key not in self.recorded:
                return Mismatch(self.label_of(key), "nothing", shown(now[key]))
        for key in self.recorded:
            if key not in now:
                return Mismatch(self.label_of(key), shown(self.recorded[key]), "nothing")
        return Mismatch(f"order of {self.label}", shown(list(self.recorded)), shown(list(now)))

    def go_over_to(self, holder: Any) -> None:
        self.holder = holder
        self.recorded, self.version = self.compared, self.pending  # as they were compared

    def label_of(self, key: Any) -> str:
        """The place of an entry, as a user would write it."""
        if self.names is not None or self.matters is not None or self.label.endswith("."):
            return f"{self.label}{key}"
        return f"{self.label}[{shown(key)}]"

    def places(self) -> Iterator[tuple[str, Any]]:
        for key, value in self.recorded.items():
            yield self.label_of(key), value


class _InOrder(ContainerGuard):
    """All elements of a container, in the order that a program meets them in."""

    __slots__ = ("recorded",)

    def __init__(self, holder: Any, label: str) -> None:
        super().__init__(holder, label)
        self.recorded = items(holder)

    def now(self) -> Any:
        return items(self.holder)

    def go_over_to(self, holder: Any) -> None:
        self.holder = holder
        self.recorded = items(holder)


class Items(_InOrder):
    """The elements of a list or a deque."""

    __slots__ = ()

    def differences(self, comparison: Comparison, holder: Any) -> Mismatch | None:
        now = items(holder)
        if _most(holder) != _most(self.holder):
            return Mismatch(f"{self.label}.maxlen", str(_most(self.holder)), str(_most(holder)))
        if len(now) != len(self.recorded):
            return Mismatch(f"length of {self.label}", str(len(self.recorded)), str(len(now)))
        for at, (before, found) in enumerate(zip(self.recorded, now, strict=True)):
            if not self.is_alike(comparison, at, before, found):
                return comparison.inner or differing(f"{self.label}[{at}]", before, found)
        return None

    def places(self) -> Iterator[tuple[str, Any]]:
        for at, value in enumerate(self.recorded):
            yield f"{self.label}[{at}]", value


class Members(_InOrder):
    """The elements of a set."""

    __slots__ = ()

    def differences(self, comparison: Comparison, holder: Any) -> Mismatch | None:
        now = items(holder)
        is_same_order = len(now) == len(self.recorded) and all(
            comparison.alike(before, found) for before, found in zip(self.recorded, now, strict=True)
        )
        return None if is_same_order else Mismatch(self.label, shown(self.recorded), shown(now))

    def places(self) -> Iterator[tuple[str, Any]]:
        yield self.label, self.recorded


def _most(holder: Any) -> int | None:
    return _MAXLEN(holder) if is_a(holder, collections.deque) else None


def _same_keys(before: dict[Any, Any], now: dict[Any, Any]) -> bool:
    return all(a is b or is_same(a, b) for a, b in zip(before, now, strict=True))

"""Counters in two levels: group, then name, then a whole number.

    counters["recordings"]["made"] += 1          counters.add("copies", "bytes", 4096)

A count is made on its first use. Reading one that was never made gives 0 and makes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from treeplay.errors import ArgumentTypeError
from treeplay.locks import shared_lock


class Count(int):
    """The value of one count when it was read; an ordinary int but for `+=` and `-=`.

    `counters[g][n] += k` reads the count, adds to what was read, and stores the sum: between the first and
    the last another thread may have counted. So the sum remembers how it came about, and storing it adds `k`
    to whatever the count is by then.
    """

    _slot: tuple[CounterGroup, str] | None = None
    _delta: int = 0

    def __iadd__(self, delta: int) -> Count:
        return self._moved_by(delta)

    def __isub__(self, delta: int) -> Count:
        return self._moved_by(-delta)

    def _moved_by(self, delta: int) -> Count:
        moved = Count(int(self) + delta)
        moved._slot, moved._delta = self._slot, self._delta + delta
        return moved

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # a copy or a pickle of a count is just its value


class CounterGroup(Mapping[str, int]):
    """The counts of one group by name; made by `Counters`, and valid as long as those are."""

    __slots__ = ("_counts", "_owner")

    def __init__(self, owner: Counters) -> None:
        self._owner = owner
        self._counts: dict[str, int] = {}

    def __getitem__(self, name: str) -> Count:
        """The count called `name`, 0 if nothing was counted under it."""
        count = Count(self._counts.get(name, 0))
        count._slot, count._delta = (self, name), 0
        return count

    def __setitem__(self, name: str, value: int) -> None:
        """Store a count: the result of `+=` is added to the count as it is now, anything else replaces it."""
        if type(value) is Count and value._slot is not None:
            origin, origin_name = value._slot
            if origin is self and origin_name == name:
                value._slot = None  # stored a second time, it would be a plain value
                self.add(name, value._delta)
                return
        _check(name, value)
        with self._owner._lock:
            self._counts[name] = int(value)

    def add(self, name: str, delta: int = 1) -> None:
        """Add `delta` to the count called `name`, as one step that no other thread can come between."""
        counts = self._counts
        if name not in counts or delta.__class__ is not int:
            _check(name, delta)
        # No call stands inside the lock: a finalizer or signal handler that counts too runs in this thread
        # and passes the re-entrant lock, but CPython starts one only at a call, not between read and write.
        with self._owner._lock:
            if name not in counts:
                counts[name] = 0
            counts[name] += delta

    def __contains__(self, name: object) -> bool:
        return name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._counts))

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return repr(self._counts)


class Counters:
    """Counts by group and name that any number of threads may raise at the same time."""

    def __init__(self) -> None:
        self._groups: dict[str, CounterGroup] = {}
        self._lock = shared_lock()

    def __getitem__(self, group: str) -> CounterGroup:
        """The counts of `group`; an empty group shows in no snapshot."""
        try:
            return self._groups[group]
        except KeyError:
            _check(group, 0)
            return self._groups.setdefault(group, CounterGroup(self))

    def add(self, group: str, name: str, n: int = 1) -> None:
        """Add `n` to the count `name` of `group`; the fastest way to count.

        Raises `ArgumentTypeError` if a name is no string or `n` no whole number.
        """
        self[group].add(name, n)

    def snapshot(self) -> dict[str, dict[str, int]]:
        """All counts at one moment, as dicts of their own: what is counted later does not show in them."""
        with self._lock:
            return {key: dict(group._counts) for key, group in list(self._groups.items()) if group._counts}

    def clear(self, group: str | None = None) -> None:
        """Forget the counts of `group`, or all counts if none is named."""
        with self._lock:
            for key, counts in list(self._groups.items()):
                if group is None or key == group:
                    counts._counts.clear()


def _check(name: object, value: object) -> None:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"a count is named by a string, got {name!r} ({type(name).__name__})")
    if not isinstance(value, int):
        raise ArgumentTypeError(f"{name!r} counts in whole numbers, got {value!r} ({type(value).__name__})")


counters = Counters()
"""The counts of this process."""

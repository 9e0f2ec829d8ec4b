"""Functions of ours that stand in for others while a program is traced: what another thread then finds in their place."""

from __future__ import annotations

import builtins
import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import get_ident
from types import FunctionType
from typing import Any

from treeplay.locks import after_fork, shared_lock


class Wanted:
    """What several threads may want at once, each for itself: the first puts it there, the last takes it away.

    `put` does the one and gives what does the other; None where there is nothing yet that it could change.
    """

    def __init__(self, put: Callable[[], Callable[[], object] | None]) -> None:
        self._put = put
        self._take_away: Callable[[], object] | None = None
        self._lock = shared_lock()
        self._values: dict[int, list[Any]] = {}
        after_fork(self._in_child)

    @contextlib.contextmanager
    def wanted(self, value: Any = True) -> Iterator[None]:
        """It is there for a block, and is `value` to this thread."""
        me = get_ident()
        with self._lock:
            # None also where there was nothing to replace: a module may have been imported since.
            if self._take_away is None:
                self._take_away = self._put()
            self._values.setdefault(me, []).append(value)
        try:
            yield
        finally:
            with self._lock:
                self._values[me].pop()
                if not self._values[me]:
                    del self._values[me]
                self._leave()

    def value(self) -> Any:
        """What it is to the thread that asks; None if that does not want it."""
        values = self._values.get(get_ident())
        return values[-1] if values else None

    def _leave(self) -> None:
        if not self._values and self._take_away is not None:
            take_away, self._take_away = self._take_away, None
            take_away()

    def _in_child(self) -> None:
        """The other threads are not in a forked child."""
        me = get_ident()
        self._values = {me: self._values[me]} if me in self._values else {}
        self._leave()


class Shared(Wanted):
    """A function of ours that stands in for what `owner` has under a name. `owner` may be a module by its name, in which
    nothing is replaced as long as nobody has imported it.

    `make(original, value)` gives the function, and `value()` what it is to the thread that calls it.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any, Callable[[], Any]], Any]) -> None:
        super().__init__(self._replace)
        self._owner, self._name, self._make = owner, name, make

    def _replace(self) -> Callable[[], object] | None:
        owner = sys.modules.get(self._owner) if isinstance(self._owner, str) else self._owner
        # As it stands there: `getattr` binds class methods, and a bound one put back would no longer be one.
        own = vars(owner).get(self._name, ABSENT) if owner is not None else ABSENT
        builtin = getattr(builtins, self._name, ABSENT)  # which a module's code finds, if the module itself has none
        original = (getattr(owner, self._name, builtin) if owner is not None else ABSENT) if own is ABSENT else own
        if original is ABSENT:
            return None
        function = self._make(original, self.value)
        stand_in(getattr(function, "__func__", function), own)
        setattr(owner, self._name, function)
        # What was inherited is to be inherited again, not to become the class's own.
        return partial(delattr, owner, self._name) if own is ABSENT else partial(setattr, owner, self._name, own)


@contextlib.contextmanager
def all_wanted(of: Iterable[Wanted], value: Any = True) -> Iterator[None]:
    """All of these are there for a block."""
    with contextlib.ExitStack() as stack:
        for each in of:
            stack.enter_context(each.wanted(value))
        yield


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT: Any = _Absent()
"""Stands for an entry that is not there."""


def stand_in(function: Any, original: Any = ABSENT) -> None:
    """Mark `function` as ours, in the place of `original` for a while."""
    function.is_treeplays = True
    function.stands_for = original


def without_stand_in(value: Any) -> Any:
    """A value as it is while nothing is traced: what a function of ours stands for, `ABSENT` for nothing, else itself. So it
    is with what Dynamo puts around methods of `nn.Module` when it first compiles, which notes that they were called."""
    function = value.__func__ if type(value) is classmethod else value.fget if type(value) is property else value
    if type(function) is FunctionType:
        if hasattr(function, "is_treeplays"):
            return getattr(function, "stands_for", ABSENT)
        if function.__module__ == _NOTES_MODULES and len(function.__closure__ or ()) == 1:
            return function.__closure__[0].cell_contents  # type: ignore[index]
    return value


_NOTES_MODULES = "torch._dynamo.mutation_guard"

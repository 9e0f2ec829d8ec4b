"""Functions of ours that stand in for others while a program is traced: what another thread then finds in their place."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from threading import get_ident
from types import FunctionType
from typing import Any, TypeVar

from treeplay.locks import shared_lock


class Shared:
    """A stand-in that several threads may want at once, each for itself: the first puts it there, the last takes it away.

    `make(original, is_wanted)` gives the function; `is_wanted()` tells whether the thread that calls it is one of them.
    """

    def __init__(self, owner: Any, name: str, make: Callable[[Any, Callable[[], bool]], Any]) -> None:
        self._owner, self._name, self._make = owner, name, make
        self._lock = shared_lock()
        self._threads: Counter[int] = Counter()
        self._original: Any = None

    @contextlib.contextmanager
    def wanted(self) -> Iterator[None]:
        """It stands in for a block, as far as this thread is concerned."""
        me = get_ident()
        with self._lock:
            if not self._threads:
                self._original = getattr(self._owner, self._name)
                function = self._make(self._original, self._is_wanted)
                stand_in(function, self._original)
                setattr(self._owner, self._name, function)
            self._threads[me] += 1
        try:
            yield
        finally:
            with self._lock:
                self._threads[me] -= 1
                self._threads += Counter()  # without threads that want it no more
                if not self._threads:
                    setattr(self._owner, self._name, self._original)

    def _is_wanted(self) -> bool:
        return get_ident() in self._threads


F = TypeVar("F", bound=FunctionType)


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

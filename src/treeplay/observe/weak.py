"""A table about objects that does not keep them alive, and tells them apart by identity, not by equality."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar, overload

from treeplay.errors import ArgumentTypeError
from treeplay.locks import shared_lock

_K = TypeVar("_K")
_V = TypeVar("_V")
_D = TypeVar("_D")


class WeakIdDict(Generic[_K, _V]):
    """Values by the identity of their keys; an entry goes when its key dies. Safe under threads.

    Keys need be neither hashable nor comparable, but weakly referable. A value that refers to its own key
    keeps it alive. There is no way to list the keys: handing one out would bring it back to life.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[_K], _V]] = {}
        self._lock = shared_lock()  # re-entrant: storing a value may free another key

    def __getitem__(self, key: _K) -> _V:
        """The value of `key`; `KeyError` if it has none."""
        entry = self._entry(key)
        if entry is None:
            raise KeyError(key)
        return entry[1]

    def __setitem__(self, key: _K, value: _V) -> None:
        """Give `key` a value; `ArgumentTypeError` if it cannot be weakly referenced."""
        number = id(key)
        reference = _reference(key, self._forgetter(number))
        with self._lock:
            self._entries[number] = (reference, value)

    def __delitem__(self, key: _K) -> None:
        """Forget `key`; `KeyError` if it has no value."""
        with self._lock:
            if key not in self:
                raise KeyError(key)
            del self._entries[id(key)]

    def __contains__(self, key: object) -> bool:
        return self._entry(key) is not None

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def get(self, key: _K) -> _V | None: ...
    @overload
    def get(self, key: _K, default: _V | _D) -> _V | _D: ...

    def get(self, key: _K, default: object = None) -> object:
        """The value of `key`, or `default`."""
        entry = self._entry(key)
        return default if entry is None else entry[1]

    def setdefault(self, key: _K, default: _V) -> _V:
        """The value of `key`, which becomes `default` if it has none."""
        with self._lock:
            entry = self._entry(key)
            if entry is None:
                self[key] = default
                return default
            return entry[1]

    def values(self) -> list[_V]:
        """The values of all living keys, in the order in which they came."""
        return [value for _, value in list(self._entries.values())]

    def clear(self) -> None:
        """Forget all keys."""
        with self._lock:
            self._entries.clear()

    def _entry(self, key: object) -> tuple[weakref.ref[_K], _V] | None:
        entry = self._entries.get(id(key))
        # An address is used again: only the reference can tell whether this is the object that was meant.
        return entry if entry is not None and entry[0]() is key else None

    def _forgetter(self, number: int) -> Callable[[weakref.ref[_K]], None]:
        table = weakref.ref(self)  # else every key would hold the table, and the table its values

        def forget(reference: weakref.ref[_K]) -> None:
            owner = table()
            if owner is None:
                return
            with owner._lock:  # against a thread that is just storing a new object at the same address
                entry = owner._entries.get(number)
                if entry is not None and entry[0] is reference:
                    del owner._entries[number]

        return forget


def _reference(key: _K, forget: Callable[[weakref.ref[_K]], None]) -> weakref.ref[_K]:
    try:
        return weakref.ref(key, forget)
    except TypeError:
        kind = type(key).__name__
        raise ArgumentTypeError(f"{kind} objects cannot be weakly referenced, so not be keys here") from None

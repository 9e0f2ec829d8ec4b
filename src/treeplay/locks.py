"""Locks that a forked child finds free: the threads that held them are not in it.

A lock that the forking thread itself holds stays held, since that thread goes on in the child and gives it back.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_in_child: list[Callable[[], None]] = []


def shared_lock() -> Any:
    """A re-entrant lock, free in a forked child unless the thread that forked holds it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


class TimedLock:
    """A lock that is not re-entrant, may be waited for only so long, and knows its holder; renewed like the others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.holder: int | None = None
        _locks.add(self)

    def acquire(self, timeout: float = -1) -> bool:
        """Take it; whether that succeeded in time."""
        taken = self._lock.acquire(timeout=timeout)
        if taken:
            self.holder = get_ident()
        return taken

    def release(self) -> None:
        """Give it back."""
        self.holder = None
        self._lock.release()

    def locked(self) -> bool:
        """Whether some thread has it."""
        return self._lock.locked()

    def _is_owned(self) -> bool:
        return self.holder == get_ident()

    def _at_fork_reinit(self) -> None:
        self._lock, self.holder = threading.Lock(), None


def after_fork(renew: Callable[[], None]) -> None:
    """Have `renew` called in each forked child, after all locks were renewed."""
    _in_child.append(renew)


def _renew() -> None:
    for lock in list(_locks):
        if not lock._is_owned():
            lock._at_fork_reinit()
    for renew in _in_child:
        renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)

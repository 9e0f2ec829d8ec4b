"""One capture at a time in this process, whichever device: threads take turns.

CUDA lets captures of several threads run beside each other, but torch's allocator, its random generators and the library
workspaces are shared, so that each would see the other's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import get_ident

from treeplay.errors import UsageError
from treeplay.locks import TimedLock

_SECONDS_BETWEEN = 0.001


class Turns:
    """Who may capture: at most one thread, once. Others wait."""

    def __init__(self) -> None:
        self._lock = TimedLock()
        self._waiting = 0  # threads, for a capture
        self._making = 0  # recordings, between whose captures nobody may have the turn

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the turn."""
        return self._lock.holder == get_ident()

    @property
    def is_making(self) -> bool:
        """Whether some thread makes a recording, which takes several captures and what is learned of them."""
        return self._making > 0

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make a recording in a block."""
        self._making += 1
        try:
            yield
        finally:
            self._making -= 1

    def take(self) -> None:
        """Wait for the turn and take it. `UsageError` if this thread has it already: captures do not nest."""
        if self.is_mine:
            raise UsageError(
                "a capture was begun inside of a capture: this thread is capturing already, and captures do not nest. "
                "End the outer one first, or put the work of both into one"
            )
        # No lock is needed: CPython changes threads at calls and jumps, and there is none between this read and this write.
        self._waiting += 1
        try:
            self._lock.acquire()
        finally:
            self._waiting -= 1

    def take_if_free(self) -> bool:
        """Take the turn unless somebody has it, this thread included; whether that was so."""
        return self._lock.acquire(timeout=0)

    def give_back(self) -> None:
        """Let the next thread capture. Whoever ends a capture may do so, in whichever thread it began."""
        self._lock.release()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn for a block."""
        self.take()
        try:
            yield
        finally:
            self.give_back()

    @contextmanager
    def taken_once(self) -> Iterator[None]:
        """Have the turn for a block, which may be inside of another one of this thread's."""
        with nullcontext() if self.is_mine else self.taken():
            yield

    @contextmanager
    def taken_last(self) -> Iterator[None]:
        """The same, after everybody who waits for a capture: for what comes again and again."""
        while self._waiting and not self.is_mine:
            time.sleep(_SECONDS_BETWEEN)
        with self.taken_once():
            yield


turns = Turns()

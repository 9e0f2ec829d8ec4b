"""One capture at a time in this process, whichever device: threads take turns.

CUDA lets captures of several threads run beside each other, but torch's allocator, its random generators and the library
workspaces are shared, so that each would see the other's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from treeplay.errors import UsageError


class Turns:
    """Who may capture: at most one thread, once. Others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the turn."""
        return self._holder == threading.get_ident()

    def take(self) -> None:
        """Wait for the turn and take it. `UsageError` if this thread has it already: captures do not nest."""
        if self.is_mine:
            raise UsageError(
                "a capture was begun inside of a capture: this thread is capturing already, and captures do not nest. "
                "End the outer one first, or put the work of both into one"
            )
        self._lock.acquire()
        self._holder = threading.get_ident()

    def give_back(self) -> None:
        """Let the next thread capture. Whoever ends a capture may do so, in whichever thread it began."""
        self._holder = None
        self._lock.release()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the turn for a block."""
        self.take()
        try:
            yield
        finally:
            self.give_back()

    def renew(self) -> None:
        """Forget the holder (in a forked child, where it does not exist)."""
        self._lock = threading.Lock()
        self._holder = None


turns = Turns()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=turns.renew)

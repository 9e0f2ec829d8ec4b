"""The threads that record just now: tracers and compilers stand in for parts of torch meanwhile, for all threads.

A check that fails while another thread records may fail for that alone: such a call runs eagerly, and blames nobody.
"""

from __future__ import annotations

from collections import Counter
from threading import get_ident

from treeplay.locks import after_fork, shared_lock
from treeplay.trace.turn import is_tracing, turns_taken


class Recorders:
    """A context for a thread that records, and what others can ask."""

    def __init__(self) -> None:
        self._lock = shared_lock()
        self._active: Counter[int] = Counter()  # by thread
        self._begun = 0

    def __enter__(self) -> None:
        with self._lock:
            self._active[get_ident()] += 1
            self._begun += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._active[get_ident()] -= 1
            self._active += Counter()  # without threads that have none left

    def now(self) -> tuple[int, int]:
        """A moment, for `disturbed`."""
        return self._begun, turns_taken()

    def disturbed(self, since: tuple[int, int]) -> bool:
        """Whether some thread records or traces, or has begun to since a moment. For a thread that does neither."""
        return bool(self._active) or self._begun != since[0] or is_tracing(since[1])

    def others(self, since: tuple[int, int]) -> bool:
        """Whether a thread besides this one, which records, does so too, or has begun to since a moment."""
        return self._active.total() > 1 or self._begun != since[0]

    def renew(self) -> None:
        """Forget the threads that are not in a forked child."""
        me = get_ident()
        self._active = Counter({me: self._active[me]} if self._active[me] else {})


recorders = Recorders()
after_fork(recorders.renew)

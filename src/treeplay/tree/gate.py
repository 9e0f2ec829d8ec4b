"""Who is in a program just now: threads that run its Python, and the one that records it.

    lock       held for decisions, tables and launches; never while the program's own code runs
    inside     threads that run the program as it is; any number, at once
    alone      the thread that records: others wait at the gate while it traces, and go on beside it while it compiles

Nobody waits for long: a program that is traced may wait for a thread that waits here.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from treeplay.locks import after_fork, shared_lock
from treeplay.trace.turn import Busy, is_tracing_now

MOST_SECONDS_WAITED = 2.0
_LOOK_EVERY = 0.005  # seconds; the end of a trace tells nobody here

_gates: weakref.WeakSet[Gate] = weakref.WeakSet()


class Gate:
    """The gate of one program. All but `closer` is for a thread that holds its lock, or its own entry of `threads`.

    `is_opaque`: recording runs the program itself, with its effects undone after, so that nobody may be inside meanwhile.
    """

    def __init__(self, lock: Any = None, *, is_opaque: bool = False) -> None:
        self.lock = shared_lock() if lock is None else lock
        self._changed = threading.Condition(self.lock)
        self.threads: dict[int, int] = {}  # who is inside; one that calls itself is so more than once
        self._is_draining = False
        self.is_opaque = is_opaque
        self.closer: int | None = None  # the thread that records
        self.entered = 0  # how often threads have gone inside
        _gates.add(self)

    @contextmanager
    def let_go(self) -> Iterator[None]:
        """Without the lock for a block, however often this thread holds it."""
        if not self.lock._is_owned():
            yield
            return
        # As a condition does that waits: every level of the re-entrant lock at once.
        held = self.lock._release_save()
        try:
            yield
        finally:
            self.lock._acquire_restore(held)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """For a block that runs the program's own code, without the lock."""
        self.wait()
        me = get_ident()
        self.enter(me)
        try:
            with self.let_go():
                yield
        finally:
            self.leave(me)

    def enter(self, thread: int) -> None:
        """For a call that runs the program's own code without a block of `inside`, beside no thread that records."""
        self.threads[thread] = self.threads.get(thread, 0) + 1
        self.entered += 1

    def leave(self, thread: int) -> None:
        """The end of such a call, in its thread; it needs no lock. Who closes the gate asks after that who is inside; this asks
        after it has left whether the gate is closed: one of them sees the other."""
        left = self.threads[thread] - 1
        if left > 0:
            self.threads[thread] = left
        else:
            del self.threads[thread]
        if self.closer is not None:
            self.tell()

    def tell(self) -> None:
        """Have those who wait at the gate look again who is inside."""
        with self.lock:
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait while another thread traces the program. Not from inside: that thread may wait for this one."""
        me = get_ident()
        if me in self.threads:
            return
        end = time.monotonic() + MOST_SECONDS_WAITED
        while self.closer not in (None, me) and self._is_shut() and time.monotonic() < end:
            self._changed.wait(_LOOK_EVERY)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Close the gate for a block that records, when nobody is inside any more or has been for long.

        Raises `Busy` if another thread records.
        """
        self.wait()
        before = self.closer
        if before not in (None, get_ident()):
            raise Busy
        self.closer = get_ident()
        try:
            self.drain()
            yield
        finally:
            self.closer = before
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until no other thread is inside, letting none in; not for long."""
        self._is_draining = True
        try:
            self._changed.wait_for(lambda: not self.threads.keys() - {get_ident()}, MOST_SECONDS_WAITED)
        finally:
            self._is_draining = False

    def renew(self) -> None:
        """Forget the threads that are not in a forked child."""
        me = get_ident()
        self.threads = {thread: count for thread, count in self.threads.items() if thread == me}
        self._changed = threading.Condition(self.lock)
        if self.closer != me:
            self.closer, self._is_draining = None, False

    def _is_shut(self) -> bool:
        return self._is_draining or self.is_opaque or is_tracing_now()


def _renew() -> None:
    for gate in list(_gates):
        gate.renew()


after_fork(_renew)

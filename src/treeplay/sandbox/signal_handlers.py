"""Handlers of signals, while a program is watched: a profiler's that takes samples, a timeout's, a scheduler's notice.

Python runs them between any two instructions of the main thread. What they read and call there is none of the program's, and
what they raise is for whoever called the program. So each has one of ours in front of it while a program is watched: it tells
that the other runs, and whether that raised. Ctrl-C has a handler of its own (`interrupts`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of, without its enumerations
import inspect
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from treeplay.sandbox.interrupts import SIGINT, uninterrupted

# That of asyncio does nothing. It is set not to interrupt system calls, and nobody can ask whether it is, to set it so again.
_DOES_NOTHING = "asyncio.unix_events"


class SignalHandlers:
    """What the handlers of this process do while a program is watched."""

    def __init__(self) -> None:
        self.is_running = False  # one of them, just now
        self.raised = 0  # how often one of them has raised
        self._theirs: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._depth = 0

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A block in which they run in front of a program. In another thread than the main one, none does."""
        if not self._enter():
            yield
            return
        try:
            yield
        finally:
            self._leave()

    @uninterrupted
    def _enter(self) -> bool:
        if threading.get_ident() != threading.main_thread().ident:
            return False
        self._depth += 1
        if self._depth == 1:
            for number in _signal.valid_signals() - {SIGINT}:
                theirs = _signal.getsignal(number)
                if callable(theirs) and getattr(theirs, "__module__", None) != _DOES_NOTHING:
                    self._theirs[number] = theirs
                    _signal.signal(number, self.handle)
        return True

    @uninterrupted
    def _leave(self) -> None:
        self._depth -= 1
        if not self._depth:
            for number, theirs in self._theirs.items():
                # By `==`: each look-up makes another bound method.
                if _signal.getsignal(number) == self.handle:  # else the program has set one of its own
                    _signal.signal(number, theirs)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Run the handler of a signal. One that a program has put back later than the block finds it too."""
        was_running, self.is_running = self.is_running, bool(self._depth)
        try:
            self._theirs[number](number, frame)
        except BaseException:
            self.raised += 1
            raise
        finally:
            self.is_running = was_running


signal_handlers = SignalHandlers()
"""Of this process: signals are."""


def was_raised_by_handler(error: BaseException) -> bool:
    """Whether a handler raised an exception, which may have come in the middle of anything, watched or not."""
    return any(_is_of_handler(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _is_of_handler(frame: FrameType) -> bool:
    """Whether a function runs as the handler of a signal does: it was given the frame that it came on top of."""
    code, below = frame.f_code, frame.f_back
    last = code.co_argcount + code.co_kwonlyargcount
    names = code.co_varnames[: last + bool(code.co_flags & inspect.CO_VARARGS)]
    values = [frame.f_locals.get(name) for name in names] if below is not None else []
    return any(value is below or (type(value) is tuple and any(one is below for one in value)) for value in values)

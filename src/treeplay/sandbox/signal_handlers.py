"""Handlers of signals, while a program is watched: a profiler's that takes samples, a timeout's, a scheduler's notice.

Python runs them between any two instructions of the main thread. What they read and call there is none of the program's, and
what they raise is for whoever called the program. So each has one of ours in front of it while a program is watched: it tells
that the other runs, and whether that raised. Ctrl-C has a handler of its own (`interrupts`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of, without its enumerations
import ctypes
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from treeplay.sandbox.interrupts import SIGINT, uninterrupted

Handler = Callable[[int, FrameType | None], Any]


class InFront:
    """Stands in front of a handler, to which it leads as long as anybody keeps it."""

    def __init__(self, of: SignalHandlers, theirs: Handler) -> None:
        self._of = of
        self._theirs = theirs

    def __call__(self, number: int, frame: FrameType | None) -> None:
        of = self._of
        was_running, of.is_running = of.is_running, of.is_apart
        try:
            self._theirs(number, frame)
        except BaseException:
            of.raised += 1
            raise
        finally:
            of.is_running = was_running


class SignalHandlers:
    """What the handlers of this process do while a program is watched."""

    def __init__(self) -> None:
        self.is_running = False  # one of them, just now
        self.raised = 0  # how often one of them has raised
        self._before: dict[int, Any] = {}
        self._depth = 0

    @property
    def is_apart(self) -> bool:
        """Whether they run in front of a program."""
        return self._depth > 0

    @contextmanager
    def apart(self) -> Iterator[None]:
        """A block in which they run in front of a program; at its end, signals have the handlers again that they had. In
        another thread than the main one no handler runs, and none is changed."""
        if threading.get_ident() != threading.main_thread().ident:
            yield
            return
        depth, raised = self._depth, None
        try:
            _taking_none(self._enter)
            yield
        finally:
            while self._depth > depth:
                try:
                    _taking_none(self._leave)
                except BaseException as error:  # a handler's
                    raised = error
            if raised is not None:
                raise raised

    @uninterrupted
    def _enter(self) -> None:
        if self._depth:
            self._depth += 1
            return
        self._before = {number: _signal.getsignal(number) for number in _SIGNALS}
        self._depth = 1  # from here on, there is something to put back
        for number, theirs in self._before.items():
            if callable(theirs):
                _set(number, InFront(self, theirs))

    @uninterrupted
    def _leave(self) -> None:
        for number, theirs in self._before.items() if self._depth == 1 else ():
            if theirs is not None and _signal.getsignal(number) is not theirs:  # None: it is not Python's
                _set(number, theirs)
        self._depth -= 1  # last: where a handler raises, since another thread took its signal, all this is done again


def _set(number: int, handler: Any) -> None:
    """Set a handler, and whether system calls go on after the signal as that was."""
    is_restarting = _restarts_calls(number)
    _signal.signal(number, handler)
    if is_restarting:
        _signal.siginterrupt(number, False)


def _taking_none(change: Callable[[], None]) -> None:
    """Run what this thread takes no signals in; their handlers run before it or after it."""
    if not hasattr(_signal, "pthread_sigmask"):
        change()
        return
    mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
    try:
        _signal.pthread_sigmask(_signal.SIG_BLOCK, _SIGNALS)  # which may raise what a handler does
        change()
    finally:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


_SIGNALS = _signal.valid_signals() - {SIGINT}
_OF_FLAGS, _RESTART = slice(136, 140), 0x10000000  # in what `sigaction` tells on Linux
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _restarts_calls(number: int) -> bool:
    """Whether a system call goes on after this signal (`signal.siginterrupt(number, False)`), which `signal.signal` undoes."""
    told = ctypes.create_string_buffer(512)
    is_told = _libc is not None and _libc.sigaction(number, None, told) == 0
    return is_told and bool(int.from_bytes(told.raw[_OF_FLAGS], sys.byteorder) & _RESTART)


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

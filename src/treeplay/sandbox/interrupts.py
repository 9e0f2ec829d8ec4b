"""Ctrl-C while a stage works: raised where an exception may be raised, and a moment later where it may not.

Python raises a signal's exception between any two instructions: in the middle of what enters or leaves a context, or in a
frame that C++ called and that it does not expect an exception from, which ends the process. So a stage has a handler of its
own in front of the user's. It looks at the frames that were interrupted, and where an exception would do harm it has the
signal delivered again soon, and at the end of the stage at the latest.

    signal ─▶ harmless here? ─ yes ─▶ the user's handler, which raises
                    └ no ─▶ noted ─▶ the signal again in a millisecond, at the end of the stage at the latest
"""

from __future__ import annotations

# What `signal` is made of, without a look-up in an enumeration at each call.
import _signal  # type: ignore[import-not-found]
import _thread
import threading
import time
from collections.abc import Callable
from enum import Enum
from types import CodeType, FrameType
from typing import Any, TypeVar

from treeplay.locks import shared_lock

F = TypeVar("F", bound=Callable[..., Any])

SIGINT = int(_signal.SIGINT)
_SECONDS_UNTIL_AGAIN = 0.001
_MOST_DEFERRALS = 1000  # a user's context that waits for something when it is entered can be interrupted all the same
# What enters and leaves contexts: half of it done is worse than none. And what C code calls that may drop exceptions, so that
# nobody would hear of the signal.
_WHOLE = frozenset(
    {"__enter__", "__exit__", "__del__", "__hash__", "__eq__", "__getattribute__", "__setattr__", "__delattr__"}
)
_whole_code: set[CodeType] = set()
_asked_code: set[CodeType] = set()


def uninterrupted(function: F) -> F:
    """A function that no Ctrl-C interrupts while a stage works: it runs to its end first."""
    _whole_code.add(function.__code__)
    return function


def asked_by_cpp(function: F) -> F:
    """A function that C++ calls where it takes no exception: no Ctrl-C comes in it, however long it takes."""
    _asked_code.add(function.__code__)
    return function


class Harm(Enum):
    """What an exception would do that is raised in a frame just now."""

    NONE = "it finds its way out"
    HALF_DONE = "what enters or leaves a context does half of it"
    ENDS_PROCESS = "C++ takes none from there"


def harm_in(frame: FrameType | None) -> Harm:
    """What an exception would do in `frame`, called by whoever called it."""
    found = Harm.NONE
    while frame is not None:
        if _is_asked_by_cpp(frame):
            return Harm.ENDS_PROCESS
        if frame.f_code.co_name in _WHOLE or frame.f_code in _whole_code:
            # And on: further out, C++ may stand.
            found = Harm.HALF_DONE
        frame = frame.f_back
    return found


def _is_asked_by_cpp(frame: FrameType) -> bool:
    """Whether C++ asks a tensor without data for its device or size, or a symbolic number for its kind: it takes no exception
    for an answer."""
    if frame.f_code in _asked_code:
        return True
    if frame.f_code.co_name != "__torch_dispatch__":
        return False
    func = frame.f_locals.get("func")
    return getattr(func, "namespace", None) == "prim"


class Interrupts:
    """The handler of a stage, from the outermost stage of the main thread on. Other threads get no signals."""

    def __init__(self) -> None:
        self._lock = shared_lock()  # held to send the signal again, and to end that; never by the handler
        self._depth = 0
        self._theirs: Any = None
        self._is_over = True
        self._is_pending = False  # a signal waits
        self._is_sending = False  # a thread is about to send it again
        self._is_sent = False  # it has: what comes next may be that
        self._was_raised = False
        self._deferrals = 0

    @uninterrupted
    def enter(self) -> bool:
        """Put the handler in front; whether this thread has one, and has to `leave`."""
        if threading.get_ident() != threading.main_thread().ident:
            return False
        if self._depth == 0:
            self._is_pending = self._is_sent = self._was_raised = self._is_over = False
            self._deferrals = 0
            theirs = _signal.getsignal(SIGINT)
            # One that is not Python's, or that ignores, raises nothing.
            self._theirs = theirs if callable(theirs) else None
            if self._theirs is not None:
                _signal.signal(SIGINT, self._on_signal)
        self._depth += 1
        return True

    @uninterrupted
    def leave(self, *, is_undisturbed: bool) -> None:
        """Take it away, and deliver what is still waiting, or was raised and yet the stage `is_undisturbed`: somebody has
        dropped the exception, as Python does in a callback of a weak reference."""
        self._depth -= 1
        if self._theirs is None:
            return
        is_due, self._was_raised = self._was_raised and is_undisturbed, False
        if not self._depth:
            with self._lock:  # what was sent again before comes now, to this handler; nothing is from here on
                self._is_over = True
            # By `==`: each look-up makes another bound method.
            if _signal.getsignal(SIGINT) == self._on_signal:  # else the program has set one of its own
                _signal.signal(SIGINT, self._theirs)
            is_due |= self._is_pending  # last: until here it is this handler's to note
        if is_due:
            self._is_pending = False
            self._theirs(SIGINT, None)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._is_sent:
            self._is_sent = False
            if not self._is_pending:  # it has been delivered since
                return
        harm = harm_in(frame)
        is_patient = harm is Harm.HALF_DONE and self._deferrals < _MOST_DEFERRALS
        if harm is Harm.ENDS_PROCESS or is_patient:
            self._is_pending = True
            self._deferrals += 1
            if not (self._is_sending or self._is_over):
                self._is_sending = True
                # Not by `threading`: a program that is traced just now must not seem to start a thread.
                _thread.start_new_thread(self._send_again, ())
        else:
            self._is_pending, self._deferrals = False, 0
            self._was_raised = True
            # It raises, as a rule, and the flag stays: `leave` finds out whether the exception came through.
            self._theirs(number, frame)
            self._was_raised = False

    def _send_again(self) -> None:
        time.sleep(_SECONDS_UNTIL_AGAIN)
        with self._lock:
            self._is_sending = False
            if self._is_pending and not self._is_over:
                self._is_sent = True
                _signal.raise_signal(SIGINT)


interrupts = Interrupts()
"""Of this process: signals are."""

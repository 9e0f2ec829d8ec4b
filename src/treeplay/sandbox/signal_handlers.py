"""Handlers of signals, while a program is watched: a profiler's that takes samples, a timeout's, a scheduler's notice.

Python runs them between any two instructions of the main thread. What they read, call and store is none of the program's.
Ctrl-C has a handler of its own (`interrupts`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of, without its enumerations
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from treeplay.sandbox.interrupts import SIGINT

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handled_apart(pause: Callable[[], bool], resume: Callable[[], None]) -> Iterator[None]:
    """For a block in the main thread, the handlers that signals have at its beginning run after `pause`, and before `resume` if
    that returned true."""
    if threading.get_ident() != threading.main_thread().ident:  # no handler runs in another
        yield
        return

    def apart(theirs: Handler) -> Handler:
        def handler(number: int, frame: FrameType | None) -> None:
            was_on = pause()
            try:
                theirs(number, frame)
            finally:
                if was_on:
                    resume()

        return handler

    changed: dict[int, tuple[Handler, Handler]] = {}
    try:
        for number in {*map(int, _signal.valid_signals())} - {SIGINT}:
            theirs = _signal.getsignal(number)
            if callable(theirs):
                changed[number] = apart(theirs), theirs
                _signal.signal(number, changed[number][0])
        yield
    finally:
        for number, (ours, theirs) in changed.items():
            if _signal.getsignal(number) is ours:  # else the program has set another
                _signal.signal(number, theirs)

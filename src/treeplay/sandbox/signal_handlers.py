"""Handlers of signals, while a program is watched: a profiler's that takes samples, a timeout's, a scheduler's notice.

Python runs them between any two instructions of the main thread. What they read and call there is none of the program's, and
what they raise is for whoever called the program. Ctrl-C has a handler of its own (`interrupts`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` is made of, without its enumerations
import functools
import threading
import traceback
from types import CodeType, FunctionType, MethodType
from typing import Any

from treeplay.sandbox.interrupts import SIGINT


def codes_of_handlers() -> frozenset[CodeType]:
    """The code of the handlers that signals have just now, where it is Python and runs in this thread."""
    if threading.get_ident() != threading.main_thread().ident:
        return frozenset()
    found = (_code_of(_signal.getsignal(number)) for number in _signal.valid_signals() if number != SIGINT)
    return frozenset(code for code in found if code is not None)


def was_raised_by_handler(error: BaseException) -> bool:
    """Whether a handler raised an exception, which may have come in the middle of anything."""
    handlers = codes_of_handlers()
    return bool(handlers) and any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not isinstance(handler, (FunctionType, MethodType)):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004
    if isinstance(handler, MethodType):
        handler = handler.__func__
    return handler.__code__ if isinstance(handler, FunctionType) else None

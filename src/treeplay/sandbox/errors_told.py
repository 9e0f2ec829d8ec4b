"""Errors, told as they are raised: to whoever wants to know of those that a program handles by itself."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any


def _any(_: CodeType) -> bool:
    return True


@contextlib.contextmanager
def errors_told(
    tell: Callable[[BaseException, TracebackType], None], is_asked: Callable[[CodeType], bool] = _any
) -> Iterator[None]:
    """For a block and in this thread, `tell` hears of each error in each function that it comes through, of the code that
    `is_asked`. It hears of nothing where a debugger is told already."""
    if sys.gettrace() is not None:
        yield
        return

    def within(_: FrameType, event: str, arg: Any) -> Any:
        if event == "exception":
            tell(arg[1], arg[2])
        return within

    def called(frame: FrameType, _: str, __: Any) -> Any:
        if not is_asked(frame.f_code):
            return None
        frame.f_trace_lines = False
        return within

    sys.settrace(called)
    try:
        yield
    finally:
        if sys.gettrace() is called:  # else the program has installed its own, or taken ours away
            sys.settrace(None)

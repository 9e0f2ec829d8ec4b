"""A program that waits for another thread is refused before it waits: no replay would, and the trace is no arrival.

A trace that came to a barrier would let another thread pass, and the program itself, run as it is, would then wait for one
more. What waits in Python waits at a barrier or a condition: events, queues, semaphores and futures do.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from treeplay.torch_seam.patched import Shared, all_wanted
from treeplay.trace.run.tracer import Tracer


def _refusing(original: Any, value: Callable[[], Any]) -> Any:
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        tracer = value()
        if tracer is not None:
            # Frame 1 calls `wait`, as an event does; the one before it waits for that event.
            _refuse(tracer, original.__qualname__, sys._getframe(1).f_back)
        return original(self, *args, **kwargs)

    return wait


_WAITS = [Shared(owner, "wait", _refusing) for owner in (threading.Barrier, threading.Condition)]


def no_waiting(tracer: Tracer) -> contextlib.AbstractContextManager[None]:
    """For a block and in this thread, what would wait for another thread is refused with its line."""
    return all_wanted(_WAITS, tracer)


def _refuse(tracer: Tracer, what: str, asking: FrameType | None) -> None:
    """Raise if it is the program that waits. `asking`: what waits for the event of a condition."""
    is_new_thread = asking is not None and asking.f_code is threading.Thread.start.__code__  # refused by that name
    if tracer.reads.is_noting and not is_new_thread:  # else it is ours, or torch's
        raise tracer.refuse(
            what,
            "waits for another thread, which no replay would do",
            "wait outside of the program",
        )

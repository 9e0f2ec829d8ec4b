"""A program that waits for another thread is refused before it waits: no replay would, and the trace is no arrival.

A trace that came to a barrier would let another thread pass, and the program itself, run as it is, would then wait for one
more. What waits in Python waits at a barrier or a condition: events, queues, semaphores and futures do.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator
from threading import get_ident
from types import FrameType
from typing import Any

from treeplay.torch_seam.patched import stand_in
from treeplay.trace.tracer import Tracer


@contextlib.contextmanager
def no_waiting(tracer: Tracer) -> Iterator[None]:
    """For a block and in this thread, what would wait for another thread is refused with its line."""
    with contextlib.ExitStack() as stack:
        for owner in (threading.Barrier, threading.Condition):
            stack.callback(setattr, owner, "wait", owner.wait)
            owner.wait = _refusing(tracer, owner)  # type: ignore[method-assign]
        yield


def _refusing(tracer: Tracer, owner: Any) -> Any:
    original, thread = owner.wait, get_ident()
    tracing = weakref.ref(tracer)  # another thread that began to wait meanwhile is in here for as long as it waits

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        if get_ident() == thread:
            _refuse(tracing(), owner, sys._getframe(1).f_back)
        return original(self, *args, **kwargs)

    stand_in(wait, original)
    return wait


def _refuse(tracer: Tracer | None, owner: Any, asking: FrameType | None) -> None:
    """Raise if it is the program that waits. `asking`: what waits for the event of a condition."""
    is_new_thread = asking is not None and asking.f_code is threading.Thread.start.__code__  # refused by that name
    if tracer is not None and tracer.reads.is_noting and not is_new_thread:  # else it is ours, or torch's
        raise tracer.refuse(
            f"{owner.__name__}.wait",
            "waits for another thread, which no replay would do",
            "wait outside of the program",
        )

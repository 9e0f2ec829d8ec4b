"""A fork waits for what threads of treeplay's own import.

A child inherits modules that are imported by half, under locks of Python's that nobody gives back there: to import one of them
would hang. What compiles in the background imports a compiler for seconds, and a user who starts processes sees nothing of it.
"""

from __future__ import annotations

import functools
import os
import sys
from time import monotonic, sleep
from types import FrameType

from treeplay.observe.progress import own_threads
from treeplay.sandbox.collection import no_collection

_MOST_SECONDS = 10.0  # a compiler is imported in two to four


@functools.cache
def forks_wait_for_imports() -> None:
    """From here on, once for all. What others have run before a fork, and what holds up imports from there on, comes later."""
    import filelock  # noqa: F401 - which Inductor imports: its own functions around a fork are there, and run after ours

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_wait)


def _wait() -> None:
    until = monotonic() + _MOST_SECONDS
    while own_threads and monotonic() < until:
        sleep(0.0005)  # first: who has just got Python's lock keeps it for longer than the fork takes
        with no_collection():  # Python 3.11 would take the lock of `_current_frames` once more
            frames = [frame for thread, frame in sys._current_frames().items() if thread in own_threads]
        if not any(map(_is_importing, frames)):
            return


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != "<frozen importlib._bootstrap>":
        frame = frame.f_back
    return frame is not None

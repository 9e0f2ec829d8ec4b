"""A line on the terminal while something of treeplay's takes long: what it does, and for how many seconds already.

It comes after two seconds, is written anew each second and wiped out at the end. Where standard error is no terminal, or
with `TREEPLAY_PROGRESS=0` in the environment, there is none.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from time import monotonic
from typing import TextIO

FIRST_SECONDS = 2.0
EACH_SECONDS = 1.0
_WIPE = "\r\x1b[K"

own_threads: set[int] = set()
"""The threads that write such lines or compile in the background, by number: they run no code of the user's, draw nothing
from the default generators, and nobody waits for them."""


@contextlib.contextmanager
def progress(doing: str) -> Iterator[None]:
    """Tell of `doing` while the block takes long."""
    terminal = _terminal() if threading.get_ident() not in own_threads else None
    if terminal is None:
        yield
        return
    is_done = threading.Event()
    teller = threading.Thread(target=_tell, args=(terminal, doing, is_done), name="treeplay progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_done.set()
        teller.join()


def _terminal() -> TextIO | None:
    stream = sys.stderr
    if stream is None or os.environ.get("TREEPLAY_PROGRESS") == "0":
        return None
    try:
        return stream if stream.isatty() else None
    except (AttributeError, ValueError):  # something else in its place, or closed
        return None


def _tell(terminal: TextIO, doing: str, is_done: threading.Event) -> None:
    me, start, has_told = threading.get_ident(), monotonic(), False
    own_threads.add(me)
    try:
        seconds = FIRST_SECONDS
        while not is_done.wait(seconds):
            terminal.write(f"{_WIPE}treeplay: {doing}, {monotonic() - start:.0f} s")
            terminal.flush()
            seconds, has_told = EACH_SECONDS, True
        if has_told:
            terminal.write(_WIPE)
            terminal.flush()
    except (OSError, ValueError):  # the terminal is gone
        pass
    finally:
        own_threads.discard(me)

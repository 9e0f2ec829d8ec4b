"""Python's garbage collector, kept quiet while something is recorded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Python collects no garbage for a block.

    A dead graph or stream among it would break a capture, and to look through a compiler's objects takes a third of a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()

"""One thread traces at a time: whose turn it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from threading import get_ident

from treeplay.locks import TimedLock

# A trace moves the process's random generators and puts them back: one at a time. But a traced program may wait for a
# thread that wants to trace, so no thread waits for long.
_turns = TimedLock()
_taken = 0  # turns so far
_MOST_SECONDS_WAITED = 2.0


class Busy(Exception):
    """Another thread traces: this call runs eagerly, and a later one is traced."""


def turns_taken() -> int:
    """How often threads have begun to trace."""
    return _taken


def is_tracing(since: int) -> bool:
    """Whether some thread traces, or has since `turns_taken()` was this: others may have found its fakes, and stand-ins of
    ours, in what they reach."""
    return _turns.locked() or _taken != since


def is_tracing_now() -> bool:
    """Whether some thread traces."""
    return _turns.locked()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """A block in which this thread alone moves random generators and stands in for parts of torch; `Busy` after a long wait."""
    if not _turns.acquire(timeout=_MOST_SECONDS_WAITED):
        raise Busy
    global _taken
    _taken += 1
    try:
        yield
    finally:
        _turns.release()


_waited_to_fork = False


def _before_fork() -> None:
    """A child would inherit what stands in while another thread traces, and nobody to put it back: it waits for that."""
    global _waited_to_fork
    # A traced program may fork itself, and would wait for itself.
    _waited_to_fork = _turns.holder != get_ident() and _turns.acquire(timeout=_MOST_SECONDS_WAITED)


def _after_fork() -> None:
    global _waited_to_fork
    if _waited_to_fork:
        _waited_to_fork = False
        _turns.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

"""Python's garbage collector, while something is recorded."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

_ours: list[Callable[[str, dict[str, int]], None]] = []


@contextmanager
def no_collection() -> Iterator[None]:
    """Python collects no garbage of its own accord for a block.

    A dead graph or stream among it would break a capture, and to look through a compiler's objects takes a third of a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def collecting_within(make: Callable[[], AbstractContextManager[Any]]) -> Iterator[None]:
    """For a block, whoever collects garbage, in any thread, does so within `make()`. Anybody may call `gc.collect()`."""
    entered: list[AbstractContextManager[Any]] = []

    def callback(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            context = make()
            context.__enter__()
            entered.append(context)
        elif entered:  # or the block began during a collection
            entered.pop().__exit__(None, None, None)

    _ours.append(callback)
    gc.callbacks.append(callback)
    try:
        yield
    finally:
        gc.callbacks.remove(callback)
        _ours.remove(callback)


@contextmanager
def without_callbacks() -> Iterator[None]:
    """For a block, a collection runs no code but that of `collecting_within`."""
    theirs = [callback for callback in gc.callbacks if callback not in _ours]
    gc.callbacks[:] = [callback for callback in gc.callbacks if callback in _ours]
    try:
        yield
    finally:
        gc.callbacks[:0] = theirs

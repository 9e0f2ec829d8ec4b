"""Locks in a forked child: free, unless the thread that forked holds them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import jit
from support.children import in_a_child
from treeplay.locks import TimedLock, shared_lock
from treeplay.trace.turn import is_tracing_now, turn

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def held_elsewhere(lock: Any) -> Callable[[], None]:
    """Have another thread hold a lock; returns what makes it let go."""
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        lock.acquire()
        is_held.set()
        may_go.wait(30)
        lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait(30)

    def let_go() -> None:
        may_go.set()
        thread.join()

    return let_go


@pytest.mark.parametrize("make", [shared_lock, TimedLock])
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_lock_that_another_thread_holds_is_free_in_a_child(make: Callable[[], Any]) -> None:
    lock = make()
    let_go = held_elsewhere(lock)
    try:
        assert in_a_child(lambda: bool(lock.acquire(timeout=5)))
    finally:
        let_go()


@pytest.mark.parametrize("make", [shared_lock, TimedLock])
def test_a_lock_that_the_forking_thread_holds_is_its_own_in_the_child(make: Callable[[], Any]) -> None:
    lock = make()
    lock.acquire()

    def release() -> bool:
        lock.release()
        return bool(lock.acquire(timeout=5))

    assert in_a_child(release)
    lock.release()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_program_is_called_in_a_child_although_another_thread_was_in_it() -> None:
    weight = torch.full((3,), 2.0)
    jitted, x = jit(lambda x: x * weight - 1), torch.ones(3)
    let_go = held_elsewhere(jitted._lock)
    try:
        assert in_a_child(lambda: all(torch.equal(jitted(x), torch.ones(3)) for _ in range(4)))
    finally:
        let_go()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_waits_for_a_trace_and_the_child_may_trace() -> None:
    is_tracing, over = threading.Event(), threading.Event()

    def trace() -> None:
        with turn():
            is_tracing.set()
            over.wait(0.2)

    thread = threading.Thread(target=trace)
    thread.start()
    is_tracing.wait(30)

    def child() -> bool:
        with turn():
            return is_tracing_now()

    assert in_a_child(child)
    thread.join()
    assert not is_tracing_now()

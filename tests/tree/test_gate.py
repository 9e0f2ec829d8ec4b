"""The gate of a program: the lock is let go for its code, and one thread is alone with it for as long as it traces."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from treeplay.locks import shared_lock
from treeplay.trace.turn import Busy
from treeplay.tree import gate as gates
from treeplay.tree.gate import Gate


class Other:
    """A thread that goes in at the gate and stays until it may leave."""

    def __init__(self, gate: Gate, lock: Any) -> None:
        self.is_in, self.may_leave = threading.Event(), threading.Event()
        self._gate, self._lock = gate, lock
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._lock, self._gate.inside():
            self.is_in.set()
            self.may_leave.wait(30)

    def leave(self) -> None:
        self.may_leave.set()
        self._thread.join(30)


@pytest.fixture
def lock() -> Any:
    return shared_lock()


@pytest.fixture
def gate(lock: Any, monkeypatch: pytest.MonkeyPatch) -> Gate:
    monkeypatch.setattr(gates, "MOST_SECONDS_WAITED", 0.2)
    return Gate(lock, is_opaque=True)


def test_threads_are_inside_at_once(gate: Gate, lock: Any) -> None:
    with lock, gate.inside():
        other = Other(gate, lock)
        assert other.is_in.wait(5)
        other.leave()
    assert gate.entered == 2


def test_a_lock_held_twice_is_let_go_and_taken_again(gate: Gate, lock: Any) -> None:
    with lock:
        with lock, gate.let_go():
            assert not lock._is_owned()
        assert lock._is_owned()
    assert not lock._is_owned()


def test_who_comes_waits_for_who_is_alone(gate: Gate, lock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MOST_SECONDS_WAITED", 30.0)
    with lock, gate.alone(), gate.let_go():
        other = Other(gate, lock)
        assert not other.is_in.wait(0.05)
    assert other.is_in.wait(5)
    other.leave()


def test_nobody_waits_for_long(gate: Gate, lock: Any) -> None:
    with lock, gate.alone(), gate.let_go():
        other = Other(gate, lock)
        assert other.is_in.wait(5)
    other.leave()


def test_alone_waits_for_those_inside(gate: Gate, lock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "MOST_SECONDS_WAITED", 30.0)
    other = Other(gate, lock)
    other.is_in.wait(5)
    threading.Timer(0.05, other.may_leave.set).start()
    with lock, gate.alone():
        assert other.may_leave.is_set()
    other.leave()


def test_a_second_recorder_is_told_that_it_is_busy(gate: Gate, lock: Any) -> None:
    told: list[str] = []

    def record() -> None:
        with lock:
            try:
                with gate.alone():
                    told.append("alone")
            except Busy:
                told.append("busy")

    with lock, gate.alone(), gate.let_go():
        thread = threading.Thread(target=record)
        thread.start()
        thread.join(30)
    assert told == ["busy"]
    record()
    assert told == ["busy", "alone"]

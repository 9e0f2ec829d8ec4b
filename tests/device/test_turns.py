"""One capture at a time: threads wait, the same thread is told, and a fork starts anew."""

from __future__ import annotations

import threading

import pytest

from treeplay import UsageError
from treeplay.device.turns import Turns


def test_a_second_take_in_the_same_thread_is_refused() -> None:
    turns = Turns()
    with turns.taken():
        assert turns.is_mine
        with pytest.raises(UsageError, match="captures do not nest"):
            turns.take()
        assert turns.is_mine
    assert not turns.is_mine


def test_another_thread_waits_until_the_turn_is_given_back() -> None:
    turns, order = Turns(), []
    asked = threading.Event()

    def other() -> None:
        asked.set()
        with turns.taken():
            order.append("other")

    turns.take()
    thread = threading.Thread(target=other)
    thread.start()
    assert asked.wait(10) and not order
    order.append("first")
    turns.give_back()
    thread.join(10)
    assert order == ["first", "other"]


def test_a_failure_gives_the_turn_back() -> None:
    turns = Turns()
    with pytest.raises(KeyError), turns.taken():
        raise KeyError("k")
    assert not turns.is_mine


def test_a_forked_child_finds_nobody_at_turn() -> None:
    turns = Turns()
    thread = threading.Thread(target=turns.take)
    thread.start()
    thread.join(10)
    turns._lock._at_fork_reinit()  # what the child runs, as its thread does not hold it
    assert not turns.is_mine
    with turns.taken():
        pass

"""Who collects garbage while something is recorded does so as the recording needs it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from treeplay.sandbox.collection import collecting_within, no_collection, without_callbacks

events: list[str] = []


@contextmanager
def noting() -> Iterator[None]:
    events.append("in")
    yield
    events.append("out")


class Dying:
    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        events.append("dies")


@pytest.fixture(autouse=True)
def afresh() -> Iterator[None]:
    gc.collect()
    events.clear()
    before = list(gc.callbacks)
    yield
    assert gc.callbacks == before and gc.isenabled()


def test_whatever_dies_in_a_collection_dies_within_the_context() -> None:
    with no_collection(), collecting_within(noting):
        Dying()
        gc.collect()
    gc.collect()
    assert events == ["in", "dies", "out"]


def test_another_thread_collects_within_it_too() -> None:
    with no_collection(), collecting_within(noting):
        Dying()
        thread = threading.Thread(target=gc.collect)
        thread.start()
        thread.join()
    assert events == ["in", "dies", "out"]


def test_a_block_that_raises_leaves_nothing() -> None:
    with pytest.raises(KeyError), no_collection(), collecting_within(noting):
        raise KeyError


def test_other_callbacks_are_left_out_and_come_back() -> None:
    def theirs(phase: str, _: Any) -> None:
        events.append(f"theirs {phase}")

    gc.callbacks.append(theirs)
    try:
        with no_collection(), collecting_within(noting), without_callbacks():
            gc.collect()
        assert events == ["in", "out"]
        gc.collect()
        assert events[2:] == ["theirs start", "theirs stop"]
    finally:
        gc.callbacks.remove(theirs)

"""What a user has put on an object of a library, and what such an object keeps, is state as what is on the user's own."""

from __future__ import annotations

import json
import logging
import random
import threading
import weakref
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.fx
from torch.utils.data import TensorDataset

from support.follows import Story, follows

Tensor = torch.Tensor

OBJECTS: dict[str, Callable[[], Any]] = {
    "an event": threading.Event,
    "a thread": threading.Thread,
    "a generator of Python's": random.Random,
    "an encoder": json.JSONEncoder,
    "an exception": lambda: ValueError(0),
    "a graph": torch.fx.Graph,
    "a data set": lambda: TensorDataset(torch.ones(2)),
    "a logger": lambda: logging.Logger("one"),
}


@pytest.mark.parametrize("what", OBJECTS)
def test_an_entry_that_a_program_changes_on_an_object_of_a_library(what: str) -> None:
    @follows(calls=8, recordings=2)
    def story() -> Story:
        holder = OBJECTS[what]()
        holder.seen = {"odd": False}

        def program(x: Tensor) -> Tensor:
            holder.seen["odd"] = not holder.seen["odd"]
            return x * 2 - 1

        yield program, lambda: holder.seen

    story()


@pytest.mark.parametrize("what", OBJECTS)
def test_an_attribute_that_a_program_changes_on_an_object_of_a_library(what: str) -> None:
    @follows(calls=8, recordings=2)
    def story() -> Story:
        holder = OBJECTS[what]()
        holder.is_odd = False

        def program(x: Tensor) -> Tensor:
            holder.is_odd = not holder.is_odd
            return x * 2 - 1

        yield program, lambda: holder.is_odd

    story()


@pytest.mark.parametrize("what", OBJECTS)
def test_an_attribute_that_a_user_changes_on_an_object_of_a_library(what: str) -> None:
    @follows()
    def story() -> Story:
        holder = OBJECTS[what]()
        holder.scale = 2.0
        yield lambda x: x * holder.scale - 1
        holder.scale = 3.0
        yield

    story()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process without other threads, one of which may have done what nothing shows to be the program's."""
    monkeypatch.setattr("treeplay.trace.jit.has_company", lambda: False)


@pytest.mark.usefixtures("alone")
@follows(calls=6, refused="_mock_")
def test_a_mock_counts_each_call_once() -> Story:
    called = mock.Mock()

    def program(x: Tensor) -> Tensor:
        called(1)
        return x * 2 - 1

    yield program, lambda: called.call_count


class Key:
    """What a weak container holds."""


@pytest.mark.parametrize("kind", [weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary])
def test_what_a_program_puts_into_a_weak_container_is_put_back_and_refused(kind: Any) -> None:
    @follows(calls=6, refused="")
    def story() -> Story:
        key, kept = Key(), kind()

        def program(x: Tensor) -> Tensor:
            is_there = len(kept) > 0
            if is_there:
                kept.clear()
            elif kind is weakref.WeakSet:
                kept.add(key)
            elif kind is weakref.WeakKeyDictionary:
                kept[key] = 1
            else:
                kept[1] = key
            return x * 2 - 1

        yield program, lambda: len(kept)

    story()

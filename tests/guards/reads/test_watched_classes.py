"""Watched classes: those of what a program and loaded modules hold."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from support.watched import Plain, state
from treeplay.guards.reads import hooks as read_hooks
from treeplay.guards.reads import watched_classes
from treeplay.guards.reads.reads import Reads
from treeplay.guards.reads.watched_classes import classes_of, hooks_of_modules


def test_classes_in_reach_are_those_of_objects_and_of_what_they_hold() -> None:
    class Held:
        pass

    value = Plain()
    value.a = Held()  # type: ignore[assignment]
    found = classes_of([value, 1.0, [2.0]])
    assert {Plain, Held} <= set(found) and float not in found and list not in found


def test_what_modules_hold_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    class InModule:
        a = 1.0

    made = ModuleType("test_reads_holding")
    made.value = InModule()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, made.__name__, made)
    before = state()
    for _ in range(2):  # hooks are made once, and put in again
        with Reads([Plain], standing=hooks_of_modules()) as reads:
            assert made.value.a == 1.0
        assert state() == before
        assert list(reads.names(made.value)) == ["a"] and reads.is_watched(made.value)
        assert reads.watched >= {Plain, InModule, torch.nn.Module, torch.optim.Optimizer}


def test_managers_that_decorators_hold_are_watched_wherever_they_are() -> None:
    @contextlib.contextmanager
    def scaled() -> Iterator[None]:
        yield

    manager = scaled()
    with Reads([], standing=watched_classes._Standing().hooks()) as reads:
        assert manager.func and reads.is_watched(manager)  # type: ignore[attr-defined]
    assert list(reads.names(manager)) == ["func"]


def test_modules_that_hold_more_are_looked_through_again_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        pass

    made, standing = ModuleType("test_reads_growing"), watched_classes._Standing()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    before = standing.hooks()
    made.value = Later()  # type: ignore[attr-defined]
    assert standing.hooks() is before  # nothing was imported
    monkeypatch.setitem(sys.modules, "test_reads_imported", ModuleType("test_reads_imported"))
    assert standing.hooks() is not before and standing._changed() == []
    with Reads([], standing=standing.hooks()) as reads:
        assert Later in reads.watched


def test_symbolic_numbers_in_modules_have_no_hooks() -> None:
    with Reads([], standing=hooks_of_modules()) as reads:
        one = sys.modules["sympy"].S.One
    assert not reads.is_watched(one)


@pytest.mark.parametrize(
    "function",
    [read_hooks._compilers_modules, lambda: watched_classes._Standing().hooks()],
    ids=["compilers", "classes"],
)
def test_modules_are_listed_while_others_are_imported(function: Any) -> None:
    """A collection may begin at each object that is made, and let another thread import."""
    loaded: list[str] = []

    def load(phase: str, info: Any) -> None:
        loaded.append(f"loaded_meanwhile_{len(loaded)}")
        sys.modules[loaded[-1]] = ModuleType(loaded[-1])

    function = getattr(function, "__wrapped__", function)
    given = (0,) * function.__code__.co_argcount
    thresholds = gc.get_threshold()
    gc.callbacks.append(load)
    gc.set_threshold(1)
    try:
        function(*given)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(load)
        for name in loaded:
            del sys.modules[name]
    assert loaded

"""Reads: which attributes a block reads and assigns is noted, whoever asks for them, and nothing stays changed."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from support.watched import OfMeta, Plain, Slotted, noted
from treeplay.guards.reads.reads import WHOLE, Reads

READS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "an attribute": (lambda v: v.a, ["a"]),
    "two, in their order": (lambda v: v.b + v.a, ["b", "a"]),
    "one twice": (lambda v: v.a + v.a, ["a"]),
    "getattr with a computed name": (lambda v: getattr(v, "AB".lower()[0]), ["a"]),
    "getattr of what is absent": (lambda v: getattr(v, "c", None), ["c"]),
    "hasattr": (lambda v: hasattr(v, "c"), ["c"]),
    "attrgetter": (lambda v: operator.attrgetter("a", "b")(v), ["a", "b"]),
    "map of getattr": (lambda v: list(map(getattr, [v, v], ["a", "b"])), ["a", "b"]),
    "format": (lambda v: f"{v.a}", ["a"]),
    "str.format": (lambda v: "{x.a}".format_map({"x": v}), ["a"]),
    "a pattern": (lambda v: _matched(v), ["b"]),
    "vars": (lambda v: vars(v), [WHOLE]),
    "dir": (lambda v: dir(v), [WHOLE]),
    "all of the dictionary": (lambda v: list(v.__dict__.items()), [WHOLE]),
    "an entry of the dictionary": (lambda v: v.__dict__["a"], ["a"]),
    "get of the dictionary": (lambda v: v.__dict__.get("c"), ["c"]),
    "membership in the dictionary": (lambda v: "b" in v.__dict__, ["b"]),
    "a computed entry of the dictionary": (lambda v: v.__dict__["AB".lower()[0]], [WHOLE]),
    "the dictionary by getattr": (lambda v: getattr(v, "__dict__")["a"], [WHOLE]),  # noqa: B009
    "nothing": (lambda v: None, []),
    "its class": (lambda v: type(v), []),
}


def _matched(value: Any) -> float:
    match value:
        case Plain(b=found):
            return float(found)
    return 0.0


@pytest.mark.parametrize(("program", "expected"), READS.values(), ids=READS)
def test_what_is_read_is_noted(program: Callable[[Any], Any], expected: list[str]) -> None:
    found = [name for name in noted(Plain(), program) if name != "__class__" or "__class__" in expected]
    assert found == expected


@pytest.mark.parametrize("copying", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda f: f.__name__)
def test_a_copy_reads_all(copying: Callable[[Any], Any]) -> None:
    assert WHOLE in noted(Plain(), copying)


def test_a_store_is_noted_with_what_was_there() -> None:
    value = Plain()
    with Reads([Plain]) as reads:
        value.a = 5.0
        value.a = 6.0
        value.c = 7.0  # type: ignore[attr-defined]
        del value.b
    stores = reads.objects[id(value)].assigned
    assert [(name, str(before)) for name, before in stores.items()] == [("a", "1.0"), ("c", "nothing"), ("b", "2.0")]
    assert not reads.names(value) and list(reads.names(value, also_assigned=True)) == ["a", "c", "b"]


def test_what_notes_a_store_is_no_code_of_the_program() -> None:
    def store(value: Plain) -> None:
        value.a = 5.0

    value = Plain()
    with Reads([Plain]) as reads:
        store(value)
    assert reads.objects[id(value)].stored_at["a"] is not None  # of a class whose `__init__` is in no file
    assert [code.co_name for code in (reads.code or {}).values() if code.co_filename == "<string>"] == []


def test_what_is_read_after_it_was_assigned_is_no_read() -> None:
    def program(value: Any) -> None:
        value.a = 5.0
        value.b += value.a

    assert noted(Plain(), program) == ["b"]


def test_a_method_is_read_by_its_name_and_reads_on() -> None:
    class Scaled(Plain):
        @property
        def twice(self) -> float:
            return 2 * self.a

        def scaled(self) -> float:
            return self.twice

    assert noted(Scaled(), lambda v: v.scaled()) == ["scaled", "twice", "a"]


def test_other_threads_are_not_noted() -> None:
    mine, theirs = Plain(), Plain()
    with Reads([Plain]) as reads:
        thread = threading.Thread(target=lambda: (theirs.a, setattr(theirs, "b", 3.0)))
        thread.start()
        thread.join()
        assert mine.a == 1.0
    assert list(reads.names(mine)) == ["a"] and not reads.names(theirs, also_assigned=True) and theirs.b == 3.0


def test_a_pause_leaves_out_what_is_in_it() -> None:
    value = Plain()
    with Reads([Plain]) as reads:
        assert reads.pause() and not reads.pause()
        value.a = value.b
        reads.resume()
        assert value.a == 2.0
    assert list(reads.names(value, also_assigned=True)) == ["a"]
    assert not reads.pause()


def test_another_thread_cannot_pause() -> None:
    answers: list[bool] = []
    value = Plain()
    with Reads([Plain]) as reads:
        thread = threading.Thread(target=lambda: answers.append(reads.pause()))
        thread.start()
        thread.join()
        assert value.a == 1.0
    assert answers == [False] and list(reads.names(value)) == ["a"]


def test_slots_are_noted() -> None:
    value = Slotted()
    with Reads([Slotted]) as reads:
        assert value.a == 1.0 and not hasattr(value, "b")
        value.b = 3.0
    assert list(reads.names(value)) == ["a", "b"] and reads.is_watched(value)


def test_instances_of_a_class_with_a_metaclass_are_noted() -> None:
    value = OfMeta()
    with Reads([OfMeta]) as reads:
        assert value.a == 1.0 and OfMeta.size == 3
    assert list(reads.names(value)) == ["a"] and reads.is_watched(value)


def test_attributes_of_modules_are_noted() -> None:
    made = ModuleType("made")
    made.rate = 2.0  # type: ignore[attr-defined]
    with Reads([], [made]) as reads:
        assert made.rate == 2.0 and not hasattr(made, "other") and torch.float32 is not None
        assert isinstance(made, ModuleType)
    assert reads.is_watched(made) and reads.is_watched(torch)
    assert list(reads.names(made)) == ["rate", "other"] and "float32" in reads.names(torch)


def test_garbage_collection_runs_nobodys_callbacks() -> None:
    calls: list[str] = []

    def callback(phase: str, _: Any) -> None:
        calls.append(phase)

    gc.callbacks.append(callback)
    try:
        with Reads([Plain]):
            gc.collect()
        assert not calls
        gc.collect()
        assert calls
    finally:
        gc.callbacks.remove(callback)


def test_code_and_builtins_that_ran_are_known_afterwards() -> None:
    def program(value: Any) -> int:
        return len([value.a])

    with Reads([Plain]) as reads:
        program(Plain())
    assert program.__code__ in (reads.code or {}).values()
    assert any(program.__code__ in callers for name, callers in reads.builtins.items() if name.endswith("len"))


def test_objects_are_forgotten() -> None:
    value = Plain()
    with Reads([Plain]) as reads:
        assert value.a == 1.0
    reads.forget()
    assert not reads.objects and not reads.names(value)

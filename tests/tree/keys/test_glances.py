"""A quick look at arguments finds what became of calls like them."""

from __future__ import annotations

import copy
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import treeplay
from treeplay.trace.call import Call, call_of
from treeplay.tree.keys.glances import Glances
from treeplay.tree.table import Entry, EntryTable
from treeplay.tree.worth.budget import Pause
from treeplay.values.structure import Leaf


def call(*args: Any, **kwargs: Any) -> Call:
    return call_of(args, kwargs)


def entry_with(recording: Any) -> Entry:
    return Entry({}, recordings=[recording])


def test_the_recording_of_the_last_call_that_looked_alike_is_found() -> None:
    glances, first, second = Glances(), SimpleNamespace(), SimpleNamespace()
    glances.remember(call(torch.ones(2), 1), one := entry_with(first), first)  # type: ignore[arg-type]
    glances.remember(call(torch.ones(3), 1), two := entry_with(second), second)  # type: ignore[arg-type]
    assert glances.find((torch.zeros(2), 1), {}, but=None) == (one, first)
    assert glances.find((torch.zeros(3), 1), {}, but=None) == (two, second)
    assert glances.find((torch.zeros(3), 1), {}, but=second) is None  # type: ignore[arg-type]
    for other in ((torch.zeros(4), 1), (torch.zeros(2), 2), (torch.zeros(2),)):
        assert glances.find(other, {}, but=None) is None
    assert glances.find((torch.zeros(2),), {"n": 1}, but=None) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1], [1, 1]),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 2}),
        ({"a", "b"}, {"a", "c"}),
        ((), (torch.ones(2),)),
        ([], ()),
    ],
)
def test_containers_look_like_what_is_in_them(one: Any, other: Any) -> None:
    glances, first, second = Glances(), SimpleNamespace(), SimpleNamespace()
    glances.remember(call(one), found := entry_with(first), first)  # type: ignore[arg-type]
    glances.remember(call(other), entry_with(second), second)  # type: ignore[arg-type]
    assert glances.find((copy.copy(one),), {}, but=None) == (found, first)


def test_nobody_is_asked_whether_objects_are_equal() -> None:
    class Asked:
        def __eq__(self, other: object) -> bool:
            raise AssertionError

        __hash__ = object.__hash__

    glances, recording = Glances(), SimpleNamespace()
    glances.remember(call({Asked(): 1}), entry_with(recording), recording)  # type: ignore[arg-type]
    assert glances.find(({Asked(): 1},), {}, but=None) is not None


class Unhashable(type):
    def __eq__(cls, other: object) -> bool:
        raise AssertionError


class Mode(metaclass=Unhashable):
    factor = 2.0


def test_a_class_that_cannot_be_hashed_has_its_look() -> None:
    glances, recording = Glances(), SimpleNamespace()
    of_its_own = Call((Mode(),), {}, [], Leaf(0))
    glances.remember(of_its_own, entry_with(recording), recording)  # type: ignore[arg-type]
    assert glances.find((Mode(),), {}, but=None) is not None


def test_a_call_with_an_object_whose_class_cannot_be_hashed_is_answered() -> None:
    jitted: Any = treeplay.jit(lambda x, mode: x * mode.factor - 1, lower="aten", on_refusal="eager")
    mode = Mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which tells that no key can be made of it
        for _ in range(3):
            assert torch.equal(jitted(torch.ones(2), mode), torch.ones(2))


def test_a_recording_that_is_gone_is_neither_found_nor_held() -> None:
    glances, table, recording = Glances(), EntryTable(), SimpleNamespace()
    entry = entry_with(recording)
    table.put("key", entry)
    glances.remember(call(1), entry, recording)  # type: ignore[arg-type]
    glances.forget_gone(table)
    assert glances.find((1,), {}, but=None) == (entry, recording)
    entry.recordings.clear()
    assert glances.find((1,), {}, but=None) is None
    glances.remember(call(1), entry_with(recording), recording)  # type: ignore[arg-type]
    glances.forget_gone(table)  # whose table never had it
    assert not glances._found


def test_calls_that_ran_eagerly_time_and_again_are_left_alone() -> None:
    glances, entry = Glances(), Entry({})
    for _ in range(10):
        glances.leave_alone(entry, call(1), "refused", cost=1.0, ran=1e-6)
    found = glances.find((1,), {}, but=None)
    assert isinstance(found, Pause) and found.left == 4 and (found.entry, found.why) == (entry, "refused")
    assert glances.find((2,), {}, but=None) is None


def test_there_are_only_so_many() -> None:
    glances, recording = Glances(), SimpleNamespace()
    for number in range(1000):
        glances.remember(call(number), entry_with(recording), recording)  # type: ignore[arg-type]
    assert len(glances._found) <= 256

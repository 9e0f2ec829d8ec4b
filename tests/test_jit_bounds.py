"""What a program keeps is bounded, and the warning says what to hold still."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit


def test_the_least_recently_used_key_goes_first() -> None:
    jitted = jit(lambda x: x * 2 - 1)
    with treeplay.settings.changed(max_recordings_per_program=2), pytest.warns(UserWarning):
        for size in (2, 2, 3, 3, 2, 4, 4):
            assert_same(jitted(torch.ones(size)), torch.ones(size))
    assert [key.arguments for key in jitted.statistics().keys] == ["args[0]=float32[2]", "args[0]=float32[4]"]
    assert jitted.statistics().dropped == 1


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        ([((torch.ones(2, size),), {"mode": "a"}) for size in range(1, 9)], r"varies from call to call is args\[0\]\."),
        ([((torch.ones(2, 3),), {"mode": str(n)}) for n in range(8)], "is mode."),
        ([((torch.ones(2, 3 + n % 2),), {"mode": str(n)}) for n in range(8)], r"is args\[0\], mode"),
    ],
)
def test_the_warning_names_what_varies(calls: Any, named: str) -> None:
    jitted = jit(lambda x, mode: x * 2)
    with treeplay.settings.changed(max_recordings_per_program=4), pytest.warns(UserWarning, match=named):
        for args, kwargs in calls:
            jitted(*args, **kwargs)
    assert len(jitted.statistics().keys) == 4


def test_statistics_stay_true_over_dropped_recordings() -> None:
    jitted = jit(lambda x: x * 2)
    with treeplay.settings.changed(max_recordings_per_program=2):
        for size in range(1, 7):
            for _ in range(4):
                jitted(torch.ones(size))
    statistics = jitted.statistics()
    assert (statistics.calls, statistics.replays, statistics.eager_calls) == (24, 18, 6)
    assert statistics.recordings == 6 and statistics.dropped == 4


def test_a_dropped_key_can_be_recorded_again() -> None:
    jitted = jit(lambda x: x * 3 - 1)
    with treeplay.settings.changed(max_recordings_per_program=1):
        for size in (2, 2, 3, 3, 2, 2, 2):
            assert_same(jitted(torch.ones(size)), torch.full((size,), 2.0))
    assert jitted.statistics().recordings == 3


def test_recordings_of_one_key_are_bounded_too() -> None:
    scale = 0.0
    jitted = jit(lambda x: x * scale)
    with treeplay.settings.changed(max_recordings_per_program=2, max_rerecordings=30):
        for value in (1.0, 2.0, 3.0, 4.0):
            scale = value
            for _ in range(3):
                assert_same(jitted(torch.ones(1)), torch.full((1,), value))
    assert len(jitted.statistics().keys[0].recordings) == 2


def test_a_recording_keeps_no_argument_and_no_result_alive() -> None:
    jitted = jit(lambda x: {"y": x * 2, "grad": (x.detach() * 3)})
    for _ in range(3):
        jitted(torch.ones(4))
    x = torch.ones(4)
    found = jitted(x)
    alive = [weakref.ref(x), weakref.ref(found["y"])]
    del x, found
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_the_arguments_it_was_recorded_with_are_let_go() -> None:
    jitted = jit(lambda x: x * 2)
    seen = []
    for _ in range(2):
        x = torch.ones(4)
        seen.append(weakref.ref(x))
        jitted(x)
    del x
    gc.collect()
    assert [ref() for ref in seen] == [None, None]


def test_a_program_that_is_dropped_takes_its_recordings_along() -> None:
    model = torch.nn.Linear(2, 2)
    jitted = jit(model.forward)
    with torch.no_grad():
        for _ in range(3):
            jitted(torch.ones(1, 2))
    alive = [weakref.ref(jitted), weakref.ref(model)]
    del jitted, model
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_replays_do_not_leak() -> None:
    jitted = jit(lambda x: (x * 2).relu().sum() - x)
    for _ in range(3):
        jitted(torch.ones(8))
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(200):
        jitted(torch.ones(8))
    gc.collect()
    assert len(gc.get_objects()) - before < 50


@pytest.mark.parametrize("wrap", [lambda it: it, lambda it: [it], lambda it: {"a": it}], ids=["object", "list", "dict"])
def test_objects_that_never_come_again_are_refused_by_the_name_of_their_argument(wrap: Any) -> None:
    state: dict[str, Any] = {}

    def program(x: torch.Tensor, given: Any) -> torch.Tensor:
        state["last"] = given
        return x * 2 - 1

    jitted: Any = treeplay.jit(program, lower="aten")
    with treeplay.settings.changed(max_recordings_per_program=3), pytest.warns(UserWarning, match="another object"):
        for _ in range(6):
            given = wrap(SomeObject())
            jitted(torch.ones(2), given)
            assert state["last"] is given
    made = jitted.statistics()
    assert made.refusals == 1 and len(made.keys) == 1 and "args[1]" in str(made.keys[0].refusal)
    assert "in program" in str(made.keys[0].refusal)
    jitted.reset()
    given = SomeObject()
    for _ in range(4):
        jitted(torch.ones(2), given)
    assert jitted.statistics().recordings == 1


class SomeObject:
    pass


def test_a_recording_that_is_found_at_a_glance_was_used_last() -> None:
    jitted = jit(lambda x: x * 2 - 1)
    with treeplay.settings.changed(max_recordings_per_program=2):
        for size in (2, 2, 3, 3, 2, 3, 2, 4):
            assert_same(jitted(torch.ones(size)), torch.ones(size))
    assert [key.arguments for key in jitted.statistics().keys] == ["args[0]=float32[2]", "args[0]=float32[4]"]

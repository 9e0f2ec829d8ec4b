"""A graph whose launch function takes its arguments and returns its results itself, on a GPU made of the CPU.

Whoever called the graph is told of that function, and again when it is no more.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from support.taped_gpu import TapedGpu, capture_on_the_cpu
from treeplay.backend.recording.compiled_graph import CompiledGraph
from treeplay.backend.recording.replayed import Replayed
from treeplay.errors import UsageError
from treeplay.settings import settings

NAMES = ("x", "w", "size", "a", "b", "c", "d", "nothing")


def body(args: list[Any]) -> list[Any]:
    x, w, size, *others, nothing = args
    args.clear()
    assert nothing is None
    hidden = x @ w - size
    for other in others:
        hidden = hidden * 2 - other
    return [hidden, w, hidden.t(), None, w.t(), size]


def given() -> list[Any]:
    return [torch.randn(3, 4), torch.randn(4, 4), 2, *(torch.randn(3, 4) for _ in range(4)), None]


class Caller:
    """Calls what it was told of last, as generated functions do."""

    def __init__(self, replayed: Replayed) -> None:
        self.run: Any = replayed
        replayed.subscribe(lambda now: setattr(self, "run", now))

    def check(self, args: list[Any]) -> list[Any]:
        expected, taken = body(list(args)), list(args)
        found = self.run(taken)
        assert taken == [] and found[1] is args[1]
        for one, other in zip(found, expected, strict=True):
            if not isinstance(other, torch.Tensor):
                assert one == other
                continue
            torch.testing.assert_close(one, other, rtol=0, atol=0)
            assert one.stride() == other.stride()
        return list(found)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> TapedGpu:
    return capture_on_the_cpu(monkeypatch)


def make(gpu: TapedGpu, run: Any = body, **facts: Any) -> tuple[Replayed, Caller]:
    graph = CompiledGraph(run, "graph 0", NAMES, **facts)
    replayed = Replayed(graph, gpu, lambda: None, lambda reason: None)
    return replayed, Caller(replayed)


def captured(gpu: TapedGpu) -> tuple[Replayed, Caller]:
    """The same after the calls that lead to a capture."""
    replayed, caller = make(gpu)
    for _ in range(3):
        caller.check(given())
    return replayed, caller


def launches(replayed: Replayed) -> int:
    facts = replayed.facts()
    assert facts is not None and facts.stage == "recorded"
    return facts.launches


def test_who_calls_a_graph_calls_its_launch_function(gpu: TapedGpu) -> None:
    replayed, caller = make(gpu)
    kept = []
    for _ in range(5):
        args = given()
        kept.append((caller.check(args), body(list(args))))
    assert caller.run.__name__ == "launch" and launches(replayed) == 4
    for found, expected in kept:  # results stay valid
        torch.testing.assert_close(found[2], expected[2], rtol=0, atol=0)


def test_another_number_runs_the_graph_as_compiled_and_the_next_is_launched(gpu: TapedGpu) -> None:
    replayed, caller = captured(gpu)
    args = given()
    args[2] = 5
    caller.check(args)
    assert launches(replayed) == 2 and replayed.plain_calls()["other numbers than those recorded"] == 1
    caller.check(given())
    assert launches(replayed) == 3


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_value_of_a_wrong_type_is_refused_by_position(gpu: TapedGpu, at: int) -> None:
    replayed, caller = captured(gpu)
    args = given()
    args[at] = torch.ones(2) if at == 2 else [1.0]
    with pytest.raises(UsageError, match=rf"argument {at} \(`{NAMES[at]}`\): expected (a|no) tensor"):
        caller.run(args)
    assert args == [] and launches(replayed) == 2
    with pytest.raises(UsageError, match="expected 8 arguments"):
        caller.run(given()[:3])
    caller.check(given())


def test_after_a_reset_the_next_call_is_a_first_call(gpu: TapedGpu) -> None:
    replayed, caller = captured(gpu)
    launch = caller.run
    replayed.reset()
    assert caller.run is replayed and replayed.facts() is None
    caller.check(given())
    caller.check(given())
    assert caller.run.__name__ == "launch" and caller.run is not launch and launches(replayed) == 1
    assert replayed.plain_calls()["warm-up"] == 2


def test_what_was_freed_is_captured_again_even_by_who_still_has_the_old_function(gpu: TapedGpu) -> None:
    replayed, caller = captured(gpu)
    launch = caller.run
    replayed.free()
    assert caller.run.__name__ == "call"
    caller.run = launch  # a thread was about to call it
    caller.check(given())
    assert caller.run is not launch and launches(replayed) == 3


def test_state_that_moves_is_read_where_it_lies(gpu: TapedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "max_rerecordings", 1)
    replayed, caller = make(gpu, static=frozenset({1}))
    args = given()
    for _ in range(3):
        caller.check([given()[0], *args[1:]])
    for number in range(3):  # the tape of the first cannot follow, so it is captured anew, and then runs as it is
        before, args[1] = args[1], torch.randn(4, 4)  # both alive: it has moved
        assert before is not args[1]
        if number == 1:
            with pytest.warns(UserWarning, match="unrecorded"):
                caller.check(args)
        else:
            caller.check(args)
    assert sum(replayed.plain_calls().values()) == 3


def test_an_error_of_ours_before_the_launch_leaves_the_call_its_results(gpu: TapedGpu) -> None:
    replayed, caller = captured(gpu)

    def fail(*_: Any) -> None:
        raise KeyError("ours")

    caller.run.__globals__["empty"] = fail
    with pytest.warns(UserWarning, match="an error of its own: while recording on a GPU: KeyError"):
        caller.check(given())
    caller.check(given())
    facts = replayed.facts()
    assert facts is not None and facts.stage == "not recorded" and replayed.plain_calls()["given up"] == 1


def test_a_recording_goes_with_the_last_who_calls_it(gpu: TapedGpu) -> None:
    replayed, caller = captured(gpu)
    recorded: Any = replayed._recorded
    gone: list[Any] = [weakref.ref(one) for one in (replayed, recorded.replay, caller.run)]
    del recorded
    gc.disable()
    try:
        del replayed, caller
        assert [one() for one in gone] == [None] * 3
    finally:
        gc.enable()

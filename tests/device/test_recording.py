"""One piece of work on its way to a graph, with the capture stood in for: no GPU is needed to see where each call goes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import pytest
import torch

import treeplay
from treeplay.device.cuda import recording
from treeplay.device.cuda.recording import CudaRecording
from treeplay.device.protocol import Replay, Work
from treeplay.device.use import Use
from treeplay.errors import CaptureFailed, TooEarly, UsageError
from treeplay.observe import counters, internal_errors
from treeplay.values.launch import LaunchFacts
from treeplay.values.refusal import Reason


class Lane:
    """A lane that has something to let go of, or has not."""

    def __init__(self, room: bool = False) -> None:
        self.device = torch.device("cuda", 0)
        self.room = room
        self.has_room = True
        self.asked: list[int] = []

    def admits(self, use: Use, calls: int) -> bool:
        self.asked.append(calls)
        return self.has_room

    def run_on_scratch(self, run: Any) -> Any:
        return run()

    def make_room(self) -> bool:
        self.room, was = False, self.room
        return was


class Captured:
    """A graph whose launch says so."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.is_held = True

    def launch(self, tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        self.log.append("launched")
        return ()

    replay = launch

    def facts(self) -> LaunchFacts:
        return LaunchFacts("cuda:0", "recorded")

    def free(self) -> None:
        self.log.append("freed")
        self.is_held = False


def made(
    monkeypatch: pytest.MonkeyPatch, errors: Sequence[Exception] = (), *, room: bool = False, has_run: bool = False
) -> tuple[CudaRecording, list[str], list[Replay]]:
    """A recording, the log of what was done, and what its listener was told; captures raise `errors` first."""
    log: list[str] = []
    waiting = list(errors)

    def capture(*_: Any) -> Captured:
        log.append("captured")
        if waiting:
            raise waiting.pop(0)
        return Captured(log)

    def run(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        log.append("run")
        return ()

    monkeypatch.setattr(recording, "capture_work", capture)
    monkeypatch.setattr(recording, "is_capturing", lambda: False)
    told: list[Replay] = []
    one = CudaRecording(Work("work", run, lambda tensors: (), has_run=has_run), Lane(room))  # type: ignore[arg-type]
    one.subscribe(lambda replay, is_boxed: told.append(replay))
    return one, log, told


def test_the_first_call_runs_the_second_captures_and_each_has_its_effect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, told = made(monkeypatch)
    for _ in range(4):
        one([], ())
    assert log == ["run", "captured", "launched", "launched", "launched"]
    assert len(told) == 1 and one.facts().stage == "recorded"


def test_old_gradients_go_before_the_work_makes_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    seen: list[torch.Tensor | None] = []

    def run(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        seen.append(tensors[0].grad)
        return (torch.zeros(2),)

    monkeypatch.setattr(recording, "is_capturing", lambda: False)
    one = CudaRecording(Work("work", run, lambda tensors: (), slots={0: 0}), Lane())  # type: ignore[arg-type]
    one([leaf], ())
    assert seen == [None]


def test_old_gradients_go_before_a_capture_which_begins_with_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the first launch makes them close together, and not between what the call before has left."""
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    seen: list[torch.Tensor | None] = []

    def capture(*_: Any) -> Captured:
        seen.append(leaf.grad)
        return Captured([])

    monkeypatch.setattr(recording, "is_capturing", lambda: False)
    monkeypatch.setattr(recording, "capture_work", capture)
    work = Work("work", lambda tensors, numbers: (), lambda tensors: (), slots={0: 0}, has_run=True)
    CudaRecording(work, Lane())([leaf], ())  # type: ignore[arg-type]
    assert seen == [None]


def test_a_programs_own_code_finds_the_gradients_that_it_may_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = torch.ones(2, requires_grad=True)
    leaf.grad = torch.ones(2)
    seen: list[bool] = []

    def run(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        seen.append(tensors[0].grad is not None)
        return (torch.zeros(2),)

    monkeypatch.setattr(recording, "is_capturing", lambda: False)
    work = Work("work", run, lambda tensors: (), slots={0: 0}, is_opaque=True)
    CudaRecording(work, Lane())([leaf], ())  # type: ignore[arg-type]
    assert seen == [True]


def test_work_that_has_run_is_captured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch, has_run=True)
    one([], ())
    assert log == ["captured", "launched"]


def test_a_capture_that_fails_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = CaptureFailed(Reason(op="item", why="reads on the host", advice="do not"))
    one, log, _ = made(monkeypatch, [failure])
    with pytest.warns(UserWarning, match="unrecorded"):
        for _ in range(4):
            one([], ())
    assert log == ["run", "captured", "run", "run", "run"]
    facts = one.facts()
    assert facts.stage == "not recorded" and "reads on the host" in str(facts.why)


@pytest.mark.parametrize(
    "failure",
    [
        CaptureFailed(Reason(op="matmul", why="makes a library's handle", advice="run it before")),
        RuntimeError("some library: not initialized"),
    ],
)
def test_a_capture_that_fails_in_a_thread_that_has_not_run_the_work_is_tried_again_there(
    monkeypatch: pytest.MonkeyPatch, failure: RuntimeError
) -> None:
    one, log, _ = made(monkeypatch, [failure])
    one([], ())
    with ThreadPoolExecutor(1) as elsewhere:
        for _ in range(3):
            elsewhere.submit(one, [], ()).result()
    assert log == ["run", "captured", "run", "captured", "launched", "launched"]
    assert one.plain_calls == {"warm-up": 2}


def test_a_capture_that_comes_too_early_is_tried_again_by_later_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    early = TooEarly(Reason(op="random numbers", why="somebody draws on the host", advice="draw on the GPU"))
    one, log, _ = made(monkeypatch, [early] * 5, has_run=True)
    for _ in range(7):
        one([], ())
    assert log == ["captured", "run"] * 5 + ["captured", "launched", "launched"]


def test_a_capture_that_always_comes_too_early_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    early = TooEarly(Reason(op="random numbers", why="somebody draws on the host", advice="draw on the GPU"))
    one, log, _ = made(monkeypatch, [early] * 99, has_run=True)
    with pytest.warns(UserWarning, match="unrecorded"):
        for _ in range(20):
            one([], ())
    assert log.count("captured") == 16 and log.count("run") == 20 and one.facts().stage == "not recorded"


def test_a_capture_that_fails_in_each_thread_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = CaptureFailed(Reason(op="item", why="reads on the host", advice="do not"))
    one, log, _ = made(monkeypatch, [failure] * 9, has_run=True)
    with pytest.warns(UserWarning, match="unrecorded"):
        for _ in range(9):
            thread = Thread(target=one, args=([], ()))
            thread.start()
            thread.join()
    assert log.count("run") == 9 and log.count("captured") <= 4


def test_out_of_memory_is_tried_again_when_others_have_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch, [torch.OutOfMemoryError("full")], room=True)
    one([], ())
    one([], ())
    assert log == ["run", "captured", "captured", "launched"]


def test_out_of_memory_with_nothing_to_let_go_runs_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch, [torch.OutOfMemoryError("full")])
    one([], ())
    with pytest.warns(UserWarning, match="full"):
        one([], ())
    assert log == ["run", "captured", "run"]


def test_what_was_freed_is_captured_again_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, told = made(monkeypatch)
    one([], ())
    one([], ())
    one.free()
    one([], ())
    assert log == ["run", "captured", "launched", "freed", "captured", "launched"]
    assert told[1] is one  # from here on through the recording, until there is a launch function again
    assert len(told) == 3


def test_tensors_that_do_not_fit_are_captured_anew_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch)
    one([], ())
    one([], ())
    log.clear()
    monkeypatch.setattr(recording.settings, "max_rerecordings", 1)
    one._unplaced([], ())
    assert log == ["freed", "captured", "launched"]
    log.clear()
    one._unplaced([], ())
    assert log == ["run"]


def test_what_was_let_go_to_make_room_is_evicted_once_and_captured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, told = made(monkeypatch, has_run=True)
    one([], ())
    told[-1].__self__.is_held = False  # type: ignore[attr-defined]
    assert one.facts().evictions == 1 and one.facts().stage == "warming"
    one._unplaced([], ())
    assert log == ["captured", "launched", "freed", "captured", "launched"]
    assert one.facts().evictions == 1 and one.facts().stage == "recorded"
    told[-1].__self__.is_held = False  # type: ignore[attr-defined]
    one.free()
    assert one.facts().evictions == 2


def test_what_was_let_go_runs_as_it_is_until_there_is_room_which_few_calls_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, told = made(monkeypatch, has_run=True)
    one([], ())
    told[-1].__self__.is_held = False  # type: ignore[attr-defined]
    lane: Any = one._lane
    lane.has_room = False
    one._unplaced([], ())
    assert told[-1] is one and log == ["captured", "launched", "freed", "run"]
    for _ in range(200):
        one([], ())
    assert lane.asked == [1, 2, 4, 8, 16, 32, 64, 64] and one.plain_calls == {"over the memory budget": 201}
    assert one.facts().stage == "warming" and "worth more" in str(one.facts().why) and one.facts().evictions == 1
    lane.has_room = True
    for _ in range(64):
        one([], ())
    assert one.facts().stage == "recorded" and told[-1] is not one
    assert log.count("captured") == 2 and log[-1] == "launched"


def test_a_late_call_of_a_launch_function_does_not_capture_what_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch, has_run=True)
    one([], ())
    with pytest.warns(UserWarning, match="because of an error of its own"):
        one._not_launched(KeyError("ours"), [], ())
    log.clear()
    one._unplaced([], ())
    assert log == ["run"]


def test_inside_of_somebodys_capture_the_work_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch)
    one([], ())
    monkeypatch.setattr(recording, "is_capturing", lambda: True)
    one([], ())
    monkeypatch.setattr(recording, "is_capturing", lambda: False)
    one([], ())
    assert log == ["run", "run", "captured", "launched"]


def test_a_capture_in_a_capture_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch, [UsageError("captures do not nest")])
    for _ in range(3):
        one([], ())
    assert log == ["run", "captured", "run", "captured", "launched"]


@pytest.mark.parametrize("error", [RuntimeError("nobody expected this"), KeyError("nor this"), MemoryError()])
def test_an_error_of_ours_is_counted_kept_and_told_and_the_work_runs_once(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    one, log, _told = made(monkeypatch, [error])
    with pytest.warns(UserWarning, match="because of an error of its own"):
        for _ in range(4):
            one([], ())
    assert log == ["run", "captured", "run", "run", "run"]
    assert one.facts().stage == "not recorded" and type(error).__name__ in str(one.facts().why)
    assert counters["internal errors"] == {type(error).__name__: 1}
    (text,) = internal_errors()
    assert "in _record" in text and "in capture" in text


def test_an_exception_of_the_programs_own_is_the_users_and_no_reason_to_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, log, _ = made(monkeypatch, [KeyError("mine")], has_run=True)

    def run(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        raise KeyError("mine")

    work = one._work
    one._work = dataclasses.replace(work, run=run)
    with pytest.raises(KeyError, match="mine"):
        one([], ())
    one._work = work
    one([], ())
    assert log == ["captured", "captured", "launched"]


def test_a_launch_that_raises_before_it_launches_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _told = made(monkeypatch, has_run=True)
    one([], ())
    with pytest.warns(UserWarning, match="because of an error of its own"):
        one._not_launched(KeyError("ours"), [], ())
    one([], ())
    assert log == ["captured", "launched", "run", "freed", "run"] and one.facts().stage == "not recorded"


def test_a_launch_without_memory_for_its_results_is_no_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch, has_run=True)
    one([], ())
    one._not_launched(torch.OutOfMemoryError("no room"), [], ())
    one([], ())
    assert log == ["captured", "launched", "run", "launched"] and one.facts().stage == "recorded"


def test_what_cannot_be_read_elsewhere_is_not_captured_anew_to_prove_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, log, _ = made(monkeypatch, has_run=True)

    def differences(work: Work, launch: Replay, tensors: list[torch.Tensor], numbers: Sequence[float]) -> list[str]:
        one._unplaced(tensors, numbers)  # as the launch function does
        return []

    monkeypatch.setattr(recording, "differences", differences)
    monkeypatch.setattr(Captured, "count_anew", lambda self: None, raising=False)
    with treeplay.settings.changed(verify=True):
        for _ in range(3):
            one([], ())
    assert log == ["captured", "run", "launched", "launched", "launched"] and one.facts().stage == "recorded"

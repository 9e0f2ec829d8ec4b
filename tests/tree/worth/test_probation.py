"""A recording stays if it is faster than its program, which a few calls of both show; each call runs once."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import Twins, assert_same, the_recording
from treeplay.device.host import HostDevice
from treeplay.device.protocol import Recorded, Work
from treeplay.record import front
from treeplay.tree.answers import OUTDONE, TIMED
from treeplay.tree.worth import budget, pace, probation
from treeplay.tree.worth.pace import Pace
from treeplay.tree.worth.probation import Probation, ProbationStep

pytestmark = pytest.mark.programs

BEFORE = 1 + probation._LAUNCHES_BEFORE  # calls until the first round: one is observed
ROUNDS = sum(2 * (probation._UNTIMED + timed) for timed, _ in probation._ROUNDS)
AS_IT_IS = ROUNDS // 2  # of those, if all rounds are needed


class Clock:
    """A clock that goes by what recordings and programs are said to take, in seconds, and stands still else."""

    def __init__(self) -> None:
        self.now = 0.0
        self.recorded = self.as_it_is = 1.0
        self.knows = True

    def __call__(self) -> float:
        return self.now

    def stopwatch(self) -> Any:
        """A device's watch, which does not tell yet where the clock does not know."""
        watch = SimpleNamespace(start=lambda: setattr(watch, "begun", self.now))
        watch.stop = lambda: setattr(watch, "took", self.now - watch.begun)
        watch.seconds = lambda: watch.took if self.knows else None
        return watch

    def slow(self, jitted: Any) -> Any:
        """Have the program of a jitted one take its time, whenever it runs as it is."""
        answers = jitted._manager.answers
        program = answers.program

        def slowly(*args: Any, **kwargs: Any) -> Any:
            self.now += self.as_it_is
            return program(*args, **kwargs)

        answers.program = slowly
        return jitted


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made, record = Clock(), HostDevice.record

    def slowly(device: HostDevice, work: Work) -> Recorded:
        recorded = record(device, work)

        def replay(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
            made.now += made.recorded
            return recorded.replay(tensors, numbers)

        return replace(recorded, replay=replay)

    monkeypatch.setattr(HostDevice, "record", slowly)
    monkeypatch.setattr(HostDevice, "stopwatch", lambda _: made.stopwatch())
    monkeypatch.setattr(front, "find_compiler", lambda: SimpleNamespace(path=None))  # operators are all there is
    monkeypatch.setattr(pace, "perf_counter", made)
    monkeypatch.setattr(budget, "perf_counter", made)
    with treeplay.settings.changed(tiers="background"):
        yield made


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 - 1


def call(jitted: Any, times: int, program: Callable[..., Any] = scaled, rank: int = 1) -> None:
    """Calls of one kind; another rank is another kind, whose sizes no recording of this one serves."""
    for number in range(times):
        x = torch.arange(3.0).reshape([3] + [1] * (rank - 1)) * number
        assert_same(jitted(x), program(x))


def test_Tplus12_a_recording_that_is_slower_than_its_program_goes_and_says_so(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.recorded = 1.5
    jitted = clock.slow(treeplay.jit(scaled))
    with caplog.at_level(logging.INFO, logger="treeplay.recordings"):
        call(jitted, 200)
    found = jitted.statistics()
    (key,) = found.keys
    assert key.recordings == () and found.recordings == found.dropped == 1 and found.refusals == 0
    assert found.not_replayed[OUTDONE] > 100 and found.calls == 200
    told = "1,500,000.0 µs a call, where the program as it is takes 1,000,000.0 µs"
    assert told in jitted.explain() and "tried again later" in jitted.explain()
    assert [told in record.getMessage() for record in caplog.records].count(True) == 1
    assert treeplay.observe.counters["recordings dropped"]["not faster"] == 1
    assert treeplay.observe.counters["probation"].items() == {"goes": 1}.items()


@pytest.mark.parametrize(
    ("recorded", "as_it_is", "stays"),
    [
        (0.5, 4, True),
        (0.85, 2 + 2 + 7, True),
        (0.95, AS_IT_IS, True),
        (0.97, AS_IT_IS, True),
        (0.985, AS_IT_IS, False),
        (1.0, AS_IT_IS, False),
        (1.05, AS_IT_IS, False),
        (1.2, 2 + 2 + 7, False),
    ],
)
def test_Tplus12_only_a_recording_that_wins_by_more_than_two_percent_stays(
    clock: Clock, recorded: float, as_it_is: int, stays: bool
) -> None:
    """What is clearly faster is known to be so after a few calls."""
    clock.recorded = recorded
    jitted = clock.slow(treeplay.jit(scaled))
    call(jitted, 200)
    found = jitted.statistics()
    assert found.not_replayed[TIMED] == as_it_is and (len(found.keys[0].recordings) == 1) == stays
    if stays:
        assert found.replays == 200 - 1 - as_it_is
        assert "a call, where the program as it is takes" in the_recording(jitted).worth
        assert the_recording(jitted).worth in jitted.explain()


def test_a_recording_that_stays_is_looked_at_no_more(clock: Clock) -> None:
    clock.recorded = 0.5
    jitted = clock.slow(treeplay.jit(scaled))
    call(jitted, BEFORE + ROUNDS)
    cache = jitted._manager.cache
    with treeplay.settings.changed(audit=False):
        call(jitted, 2, rank=2)
        call(jitted, 2)
        assert cache.last is not None and cache.last.worth and cache.last.probation is None
        assert cache.warm is cache.last.call and cache.due > 2**60 and cache.warm_calls == 1


@pytest.mark.parametrize("recorded", [0.5, 0.97, 1.0, 1.5])
def test_Tplus12_each_call_has_its_effects_once_whichever_way_it_runs(clock: Clock, recorded: float) -> None:
    clock.recorded = recorded
    counted, expected = torch.zeros(2), torch.zeros(2)

    def program(x: torch.Tensor) -> torch.Tensor:
        counted.add_(x).mul_(1.01)
        return counted * 2 - x

    jitted = clock.slow(treeplay.jit(program))
    for number in range(200):
        x = torch.full((2,), float(number % 3))
        expected = (expected + x) * 1.01
        assert_same(jitted(x), expected * 2 - x)
    assert jitted.statistics().not_replayed[TIMED] >= 4


@pytest.mark.filterwarnings("ignore:Seems like `optimizer.step")  # of a copied schedule
@pytest.mark.parametrize("recorded", [0.5, 1.0])
def test_Tplus12_a_training_step_goes_on_where_the_other_way_left_off(clock: Clock, recorded: float) -> None:
    clock.recorded = recorded
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)

    def make(model: nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(F.dropout(x)), x[:, :2])
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        return step

    twins = Twins(make, model, optimizer, schedule, lower="auto")
    clock.slow(twins.step)
    twins.calls(120, lambda: (torch.randn(4, 3),))
    assert twins.statistics.not_replayed[TIMED] == (4 if recorded < 1 else AS_IT_IS)


def test_Tplus12_each_kind_of_call_is_measured_by_itself(clock: Clock) -> None:
    jitted = clock.slow(treeplay.jit(scaled))
    with treeplay.settings.changed(compile_budget=0.0):  # none is tried again
        for rank, recorded in ((1, 0.5), (2, 1.5), (3, 0.5)):
            clock.recorded = recorded
            call(jitted, 100, rank=rank)
        for rank in (1, 2, 3) * 40:
            call(jitted, 1, rank=rank)
    found = {1 + key.arguments.count(","): len(key.recordings) for key in jitted.statistics().keys}
    assert found == {1: 1, 2: 0, 3: 1}, jitted.explain()


def test_kinds_of_calls_in_turn_are_measured_too(clock: Clock) -> None:
    clock.recorded = 1.5
    jitted = clock.slow(treeplay.jit(scaled))
    for rank in (1, 2) * 100:
        call(jitted, 1, rank=rank)
    assert [key.phase for key in jitted.statistics().keys] == [OUTDONE] * 2


def test_what_was_no_faster_is_tried_again_when_the_budget_is_there(clock: Clock) -> None:
    clock.recorded = 1.5
    jitted = clock.slow(treeplay.jit(scaled))
    with treeplay.settings.changed(compile_budget=0.1):
        call(jitted, 100)
        entry = next(iter(jitted._manager.cache.table))
        assert not entry.recordings and entry.not_before > clock.now
        clock.recorded = 0.5
        call(jitted, 5000)  # during which no time goes by: what is left alone does not wind the clock
        assert jitted.statistics().recordings == 1
        clock.now = entry.not_before
        call(jitted, 5000)
        assert jitted.statistics().recordings == 2 and len(entry.recordings) == 1
        assert jitted.statistics().replays > 100


@pytest.mark.parametrize(("share", "waits"), [(0.1, 100.0), (0.5, 60.0), (math.inf, 60.0), (0.0, math.inf)])
def test_each_try_waits_until_it_takes_its_share_of_the_time(clock: Clock, share: float, waits: float) -> None:
    entry, spending = budget.Entry({}, is_free=True), budget.Budget()
    with treeplay.settings.changed(compile_budget=share):
        for times in (1, 2, 4):
            spending.outdone(entry, 10.0)
            assert not entry.is_free and entry.not_before - clock.now == pytest.approx(times * waits)


@pytest.mark.parametrize("how", ["exact", "deterministic", "asked for", "switched off"])
def test_Tplus12_no_call_is_timed_where_results_may_depend_on_no_clock(clock: Clock, how: str) -> None:
    clock.recorded = 1.5
    torch.use_deterministic_algorithms(how == "deterministic")
    tiers, is_on = "exact" if how == "exact" else "background", how != "switched off"
    try:
        with treeplay.settings.changed(tiers=tiers, compare_with_eager=is_on):
            jitted = clock.slow(treeplay.jit(scaled, lower="aten" if how == "asked for" else "auto"))
            call(jitted, 200)
    finally:
        torch.use_deterministic_algorithms(False)
    assert jitted.statistics().replays == 199 and jitted.statistics().not_replayed == {"observed": 1}


def printing(x: torch.Tensor) -> torch.Tensor:
    print("called")
    return x * 2 - 1


def test_effects_of_python_do_not_come_again(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(UserWarning, match="print: happens only"):
        jitted = clock.slow(treeplay.jit(printing))
        for _ in range(100):
            jitted(torch.ones(2))
    assert "would print" in the_recording(jitted).worth and TIMED not in jitted.statistics().not_replayed


def test_what_the_caller_differentiates_stays(clock: Clock) -> None:
    jitted = clock.slow(treeplay.jit(scaled))
    for _ in range(100):
        jitted(torch.ones(2, requires_grad=True)).sum().backward()
    assert "its backward" in the_recording(jitted).worth and TIMED not in jitted.statistics().not_replayed


@pytest.mark.parametrize("draws", [False, True])
def test_random_numbers_are_drawn_as_if_there_were_no_probation(clock: Clock, draws: bool) -> None:
    clock.recorded = 0.97
    twins = Twins(lambda: lambda x: F.dropout(x) - 1 if draws else x - 1, lower="auto")
    clock.slow(twins.step)
    twins.calls(120, lambda: (torch.ones(5),))
    assert twins.statistics.not_replayed[TIMED] == AS_IT_IS


def test_a_program_that_raises_as_it_is_raises_once_and_goes_on(clock: Clock) -> None:
    clock.recorded = 0.5
    jitted = clock.slow(treeplay.jit(scaled))
    answers, slowly, raised = jitted._manager.answers, jitted._manager.answers.program, Counter[str]()

    def raising(x: torch.Tensor) -> torch.Tensor:
        raised["calls"] += 1
        if raised["calls"] == 3:
            raise ValueError("of the program's own")
        return slowly(x)  # type: ignore[no-any-return]

    call(jitted, BEFORE)
    answers.program = raising
    with pytest.raises(ValueError, match="own"):
        call(jitted, 50)
    call(jitted, 100)
    assert raised["calls"] == 4 and jitted.statistics().not_replayed[TIMED] == 4
    assert len(jitted.statistics().keys[0].recordings) == 1


def test_times_that_a_device_does_not_know_yet_are_not_waited_for(clock: Clock) -> None:
    clock.recorded, clock.knows = 1.5, False
    jitted = clock.slow(treeplay.jit(scaled))
    call(jitted, 300)
    assert jitted.statistics().not_replayed[TIMED] == 4 and len(jitted.statistics().keys[0].recordings) == 1
    clock.knows = True
    call(jitted, 100)
    assert jitted.statistics().keys[0].recordings == ()


def test_reset_in_the_middle_of_a_round(clock: Clock) -> None:
    clock.recorded = 0.5
    jitted = clock.slow(treeplay.jit(scaled))
    call(jitted, BEFORE + 3)
    jitted.reset()
    call(jitted, 200)
    assert jitted.statistics().not_replayed[TIMED] == 3 + 4 and the_recording(jitted).worth


def test_threads_share_a_probation(clock: Clock) -> None:
    clock.recorded = 1.0
    jitted, barrier = clock.slow(treeplay.jit(scaled)), threading.Barrier(4)

    def run(_: int) -> None:
        barrier.wait(30)
        call(jitted, 250)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    found = jitted.statistics()
    assert found.calls == 1000 and found.not_replayed[TIMED] <= AS_IT_IS
    # With others beside it, times are what they are.
    assert found.keys[0].recordings == () or found.keys[0].recordings[0].worth


@pytest.mark.parametrize(
    ("ours", "eager", "wins"),
    [
        ((10, 200), (1000, 200), True),  # eager waits for its host, and the GPU for eager
        ((10, 200), (13, 200), False),  # a large kernel: what the host saves is nothing
        ((10, 200), (150, 200), True),  # the host has time for something else
        ((10, 203), (150, 200), True),
        ((10, 210), (150, 200), False),  # but not if the device pays for it
        ((10, 190), (150, 200), True),
        ((300, 10), (200, 10), False),
        ((100, 100), (103, 103), True),
        ((100, 100), (101, 101), False),
    ],
)
def test_what_counts_as_faster(ours: tuple[int, int], eager: tuple[int, int], wins: bool) -> None:
    assert Pace(*ours).beats(Pace(*eager), pace.MARGIN) == wins
    assert not (wins and Pace(*eager).beats(Pace(*ours), pace.MARGIN) and ours[0] == ours[1])


def test_calls_that_cannot_be_timed_drop_nothing() -> None:
    never = SimpleNamespace(start=lambda: None, stop=lambda: None, seconds=lambda: 0.0)
    found = Probation(lambda: never)
    steps = []
    while (step := found.next(1000)) not in (ProbationStep.STAYS, ProbationStep.GOES):
        steps.append(step)
        with found.take():
            pass
    assert step is ProbationStep.STAYS and steps == [ProbationStep.AS_IT_IS] * 4 + [ProbationStep.RECORDED] * 4

"""The audit of recordings: what no guard sees is found late rather than never, told, and recorded anew."""

from __future__ import annotations

import ctypes
import decimal
import os
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from support import assert_same, jit, state_of, training
from treeplay import StaleRecordingWarning, settings
from treeplay.errors import Refusal, TooEarly
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.trace.traced import Trace
from treeplay.trace.turn import Busy
from treeplay.tree import audit as module_of_audit
from treeplay.tree.audit import Audit, Evidence
from treeplay.values.flatten import flatten
from treeplay.values.refusal import Reason


def call(*args: Any) -> Call:
    leaves, structure = flatten((args, {}))
    return Call(args, {}, leaves, structure)


X = torch.ones(3)


def evidence(program: Callable[..., Any], *args: Any) -> Evidence:
    return Evidence.of(trace(program, call(*(args or (X,)))))


class Holder:
    out: Any = None


# --- what is compared -----------------------------------------------------------------------------------------


def test_one_program_traced_twice_differs_in_nothing() -> None:
    holder = Holder()

    def program(x: torch.Tensor) -> Any:
        holder.out = x * 2
        return x.sin() + 1, 3.0, "a"

    assert evidence(program).difference(evidence(program)) is None


def test_a_nan_among_the_numbers_is_no_difference() -> None:
    """Each trace makes its own NaN, which no NaN equals."""

    def program(x: torch.Tensor) -> Any:
        return x.masked_fill(x > 2, float("nan")) - torch.tensor([float("nan"), 1.0, 2.0])

    assert evidence(program).difference(evidence(program)) is None


scale: Any = 2.0
DIFFERENCES: dict[str, tuple[Callable[[torch.Tensor, int], Any], str]] = {
    "number": (lambda x, n: x * (2.0 + n), "is given the number 2.0 when it was recorded and 3.0 now"),
    "operator": (lambda x, n: (x.sin, x.cos)[n](), "aten.cos.default where it took aten.sin.default"),
    "more operators": (lambda x, n: [x.sin()] + [x.cos() for _ in range(n)], ""),
    "result": (lambda x, n: (x * 2, 2.0 + n), "the program returns 2.0 when it was recorded and 3.0 now"),
    "text": (lambda x, n: (x * 2, "ab"[n]), "'a' when it was recorded and 'b' now"),
    "structure": (lambda x, n: (x * 2, x * 2)[: 2 - n], ""),
    "other tensors": (lambda x, n: (lambda y, z: (y, z)[n] - z)(x * 2, x * 3), ""),
    "order of results": (lambda x, n: (x.sin(), x.cos())[:: 1 - 2 * n], ""),
    "shape": (lambda x, n: x.expand(n + 2, 3) + 1, "is given the number 2"),
    "dtype": (lambda x, n: x.to((torch.float64, torch.float16)[n]) + 1, ""),
}


@pytest.mark.parametrize(("program", "text"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_a_difference_is_found_and_told(program: Callable[[torch.Tensor, int], Any], text: str) -> None:
    before, now = (evidence(lambda x: program(x, 0)), evidence(lambda x: program(x, 1)))
    before, now = (_of_one_line(each) for each in (before, now))
    found = before.difference(now)
    assert found is not None and text in str(found), found
    assert before.difference(before) is None and now.difference(before) is not None


def _of_one_line(found: Evidence) -> Evidence:
    """As if both had been traced from one line of one function."""
    return replace(found, log=[replace(entry, where=None) for entry in found.log])


def test_a_store_elsewhere_is_a_difference() -> None:
    first, second = Holder(), Holder()
    at = 0

    def program(x: torch.Tensor) -> None:
        (first, second)[at].out = x * 2

    before = evidence(program)
    at = 1
    found = before.difference(evidence(program))
    assert found is not None and "no longer does what was recorded" in str(found)


# --- when -----------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Retrace:
    """A program's trace, taking so long on a clock."""

    def __init__(self, clock: Clock, seconds: float, error: Exception | None = None) -> None:
        self.clock, self.seconds, self.error = clock, seconds, error
        self.made = trace(lambda x: x * 2, call(X))
        self.count = 0

    def __call__(self, _: Call) -> Trace:
        self.clock.now += self.seconds
        self.count += 1
        if self.error is not None:
            raise self.error
        return self.made


def an_audit(seconds: float = 1.0, error: Exception | None = None) -> tuple[Audit, Retrace, Clock]:
    clock = Clock()
    retrace = Retrace(clock, seconds, error)
    return Audit(retrace.made, retrace, seconds, clock), retrace, clock


def test_audits_come_after_ten_a_hundred_a_thousand_replays() -> None:
    audit, retrace, clock = an_audit()
    clock.now = 1e9
    ran = []
    for replays in range(12_000):
        if audit.may_run(replays):
            ran.append(replays)
            assert audit.run(call(X), replays) is None
    assert ran == [10, 100, 1000, 10_000] and audit.count == retrace.count == 4
    assert audit.due == 100_000


def test_an_audit_waits_until_it_takes_a_thousandth_of_the_time() -> None:
    audit, _, clock = an_audit(seconds=1.0)
    clock.now = 999.0
    assert not audit.may_run(10) and audit.due == 11
    assert not audit.may_run(100) and audit.due == 110
    clock.now = 1001.0
    assert not audit.may_run(109)
    assert audit.may_run(110)


def test_time_spent_on_audits_counts() -> None:
    audit, retrace, clock = an_audit(seconds=1.0)
    clock.now = 1000.0
    assert audit.may_run(10)
    retrace.seconds = 3.0  # slower than when the recording was made
    audit.run(call(X), 10)
    clock.now = 5999.0
    assert not audit.may_run(100)
    clock.now = 6001.0
    assert audit.may_run(200)


def test_the_next_audit_follows_from_the_replays_there_were() -> None:
    audit, _, clock = an_audit(seconds=1.0)
    clock.now = 1e9
    audit.run(call(X), 4321)
    assert audit.due == 10_000


@pytest.mark.parametrize("error", [Busy(), TooEarly(Reason("op", "why", "advice"))], ids=["busy", "too early"])
def test_an_audit_that_could_not_be_made_finds_nothing(error: Exception) -> None:
    audit, _, _ = an_audit(error=error)
    assert audit.run(call(X), 10) is None and audit.due == 100


def test_a_program_that_would_be_refused_now_differs() -> None:
    reason = Reason("op", "why", "advice")
    audit, _, _ = an_audit(error=Refusal(reason))
    assert audit.run(call(X), 10) is reason


# --- through jit ----------------------------------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits take whatever time they need."""
    monkeypatch.setattr(module_of_audit, "MOST_OF_THE_TIME", 1e9)


def audits(jitted: Any) -> int:
    return sum(recording.audits for key in jitted.statistics().keys for recording in key.recordings)


class OfFile:
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "scale.txt")
        self.set(2)

    def set(self, value: int) -> None:
        Path(self.path).write_text(str(value))

    def read(self) -> float:
        with open(self.path) as file:
            return float(file.read())


class OfEnvironment:
    """The process's environment, in C: Python's `os.environ` does not know of a change."""

    def __init__(self, _: Path) -> None:
        self.getenv = ctypes.CDLL(None).getenv
        self.getenv.restype = ctypes.c_char_p
        self.set(2)

    def set(self, value: int) -> None:
        os.putenv("TREEPLAY_TEST_SCALE", str(value))

    def read(self) -> float:
        return float(self.getenv(b"TREEPLAY_TEST_SCALE"))


class OfExtension:
    def __init__(self, _: Path) -> None:
        self.before = decimal.getcontext().prec
        self.set(2)

    def set(self, value: int) -> None:
        decimal.getcontext().prec = value

    def read(self) -> float:
        return float(len(str(decimal.Decimal(1) / 3).partition(".")[2]))


@pytest.fixture
def own_context() -> Iterator[None]:
    with decimal.localcontext():
        yield


@pytest.mark.usefixtures("at_once", "own_context")
@pytest.mark.parametrize("kind", [OfFile, OfEnvironment, OfExtension])
def test_what_no_guard_sees_is_found_told_and_recorded_anew(kind: Any, tmp_path: Path) -> None:
    world = kind(tmp_path)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * world.read()

    jitted = jit(program)
    try:
        for _ in range(4):
            assert_same(jitted(X), X * 2)
        world.set(3)
        with pytest.warns(StaleRecordingWarning) as found:
            while not found:
                jitted(X)
            told = jitted.statistics()
            for _ in range(20):
                assert_same(jitted(X), X * 3)
    finally:
        world.set(2)
    (warning,) = found
    assert warning.filename == __file__
    text = str(warning.message)
    assert "replayed an old recording of" in text and "up to 10 times" in text
    assert "the number 2.0 when it was recorded and 3.0 now" in text
    assert f"{__file__}:{program.__code__.co_firstlineno + 1}" in text
    made = jitted.statistics()
    assert (told.recordings, made.recordings, made.refusals) == (1, 2, 0)
    assert "an audit found this" in jitted.explain()


@pytest.mark.usefixtures("at_once")
def test_the_calls_of_a_recording_that_was_stale_count_on(tmp_path: Path) -> None:
    world = OfFile(tmp_path)
    jitted = jit(lambda x: x * world.read() - 1)
    for _ in range(11):  # 1 eager, 10 replayed
        jitted(X)
    world.set(3)
    with pytest.warns(StaleRecordingWarning):
        jitted(X)
    (entry,) = jitted._manager.cache.table
    assert entry.calls == 12


@pytest.mark.usefixtures("at_once")
def test_the_call_that_is_audited_gives_the_right_result_and_its_effects_once(tmp_path: Path) -> None:
    world, holder = OfFile(tmp_path), Holder()
    holder.out = torch.zeros(3)

    def program(x: torch.Tensor) -> torch.Tensor:
        holder.out += x * world.read()
        return holder.out * 1

    jitted = jit(program)
    for _ in range(11):  # 1 eager, 10 replayed
        jitted(X)
    world.set(3)
    assert_same(holder.out, X * 22)
    with pytest.warns(StaleRecordingWarning):
        assert_same(jitted(X), X * 25)
    assert_same(holder.out, X * 25)
    for count in range(5):
        assert_same(jitted(X), X * (28 + 3 * count))


@pytest.mark.usefixtures("at_once")
def test_what_an_audit_finds_again_and_again_is_refused(tmp_path: Path) -> None:
    world = OfFile(tmp_path)
    jitted = jit(lambda x: x * world.read(), on_refusal="eager")
    with settings.changed(max_rerecordings=3), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for value in range(2, 40):
            world.set(value)
            for _ in range(14):
                jitted(X)
    made = jitted.statistics()
    assert made.refusals == 1 and made.recordings <= 4
    assert_same(jitted(X), X * 39)


@pytest.mark.usefixtures("at_once")
def test_a_program_that_draws_is_audited_without_a_mark() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    step, twin = jit(lambda x: model(x).detach()), lambda x: model(x).detach()
    versions = None
    for count in range(120):
        state = torch.get_rng_state(), random.getstate()
        with torch.no_grad():
            expected = twin(X)
            after = torch.get_rng_state()
            torch.set_rng_state(state[0])
            assert_same(step(X), expected, f"call {count}")
        assert torch.equal(torch.get_rng_state(), after) and random.getstate() == state[1]
        versions = versions or [p._version for p in model.parameters()]
        assert [p._version for p in model.parameters()] == versions
    assert audits(step) == 2 and step.statistics().recordings == 1


def make_training(kind: type[torch.optim.Optimizer]) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.9)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_whole_step_with_a_schedule_is_audited_without_a_false_alarm(kind: type[torch.optim.Optimizer]) -> None:
    sides = [make_training(kind), make_training(kind)]
    steps = [jit(training(*sides[0][:2])), training(*sides[1][:2])]
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaleRecordingWarning)
        for count in range(120):
            x, y = torch.randn(4, 3), torch.randn(4, 2)
            assert_same(steps[0](x, y), steps[1](x, y), f"call {count}")
            for side in sides:
                side[2].step()
            assert_same(dict(state_of(*sides[0][:2])), dict(state_of(*sides[1][:2])), f"state after call {count}")
    made = steps[0].statistics()
    assert audits(steps[0]) == 2 and made.refusals == 0 and made.recordings == 1, steps[0].explain()


@pytest.mark.usefixtures("at_once")
def test_a_differentiable_program_is_audited_without_a_false_alarm() -> None:
    sides = [make_training(torch.optim.SGD), make_training(torch.optim.SGD)]
    forwards = [jit(sides[0][0].forward), sides[1][0].forward]
    with warnings.catch_warnings():
        warnings.simplefilter("error", StaleRecordingWarning)
        for count in range(120):
            x = torch.randn(4, 3)
            for forward, (_, optimizer, scheduler) in zip(forwards, sides, strict=True):
                optimizer.zero_grad()
                forward(x).pow(2).sum().backward()
                optimizer.step()
                scheduler.step()
            assert_same(dict(state_of(*sides[0][:2])), dict(state_of(*sides[1][:2])), f"state after call {count}")
    made = forwards[0].statistics()
    assert audits(forwards[0]) == 2 and made.refusals == 0 and made.recordings == 1, forwards[0].explain()


@pytest.mark.usefixtures("at_once")
def test_a_differentiable_program_that_reads_a_file_is_found_too(tmp_path: Path) -> None:
    world = OfFile(tmp_path)
    weight = torch.ones(3, requires_grad=True)
    jitted = jit(lambda x: x * weight * world.read())
    for _ in range(4):
        jitted(X).sum().backward()
    world.set(3)
    with pytest.warns(StaleRecordingWarning) as found:
        while not found:
            jitted(X).sum().backward()
    for _ in range(4):
        weight.grad = None
        jitted(X).sum().backward()
        assert_same(weight.grad, X * 3)


@pytest.mark.usefixtures("at_once")
def test_two_recordings_are_audited_each_on_its_own() -> None:
    jitted = jit(lambda x: x * 2)
    for _ in range(15):
        jitted(torch.ones(2))
        jitted(torch.ones(3))
    for size in (2, 3):
        for _ in range(3):
            jitted(torch.ones(size))
    assert audits(jitted) == 2


@pytest.mark.usefixtures("at_once")
def test_nothing_is_audited_where_it_is_switched_off(tmp_path: Path) -> None:
    world = OfFile(tmp_path)
    with settings.changed(audit=False), warnings.catch_warnings():
        warnings.simplefilter("error")
        jitted = jit(lambda x: x * world.read())
        for _ in range(120):
            assert_same(jitted(X), X * 2)
        world.set(3)
        for _ in range(120):
            assert_same(jitted(X), X * 2)
    assert audits(jitted) == 0


def test_a_short_run_is_not_audited() -> None:
    jitted = jit(lambda x: x * 2)
    for _ in range(200):
        jitted(X)
    assert audits(jitted) == 0 and jitted.statistics().replays == 199


@pytest.mark.usefixtures("at_once")
def test_a_call_that_does_not_fit_is_not_audited() -> None:
    jitted = jit(lambda x: x * 2)
    for _ in range(11):
        jitted(X)
    for _ in range(4):
        assert_same(jitted(torch.ones(4)), torch.full((4,), 2.0))
    assert audits(jitted) == 0 and jitted.statistics().recordings == 2

"""Errors at every step of a call: its effects happen once, nothing else changes, and no program is broken for good.

call 1 observe, reach │ call 2 trace, operator, lower, record, launch │ call 4 relaunch, results
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same
from support.faults import raising_once, surroundings
from treeplay import driver
from treeplay.errors import InternalError, Refusal, UsageError
from treeplay.observe import counters, internal_errors
from treeplay.trace import jit as tracing
from treeplay.trace.log import LoggedCall
from treeplay.trace.run.tape import TraceTape
from treeplay.trace.signature import outcome
from treeplay.tree import observing
from treeplay.tree.cache import no_recording
from treeplay.values.refusal import Reason

CUDA = pytest.param("cuda", marks=pytest.mark.gpu)
CALLS = 8
ERRORS: dict[str, Callable[[], BaseException]] = {
    "Refusal": lambda: Refusal(Reason(op="test", why="told to", advice="none")),
    "RuntimeError": lambda: RuntimeError("told to"),
    "KeyError": lambda: KeyError("told to"),
    "MemoryError": lambda: MemoryError("told to"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("told to"),
}


@dataclass
class Pair:
    """What the program returns."""

    total: torch.Tensor
    rest: torch.Tensor


class World:
    """A program with effects that tell how often it ran, a slot, random numbers, and a result of a class of its own."""

    def __init__(self, device: str) -> None:
        self.total = torch.ones(3, device=device)
        self.slots = {"last": self.total}
        self.device = device

    def step(self, x: torch.Tensor) -> Pair:
        self.total.mul_(3).add_(x)
        noise = torch.rand(3) if self.device == "cpu" else x
        self.slots["last"] = self.total * 2 - noise
        return Pair(self.total - noise, self.slots["last"] / 3 + x)

    def state(self) -> list[torch.Tensor]:
        return [self.total, self.slots["last"]]


def inject(step: str, error: BaseException, patch: pytest.MonkeyPatch, program: Any) -> None:
    """Let `step` of the next call raise."""

    def once(owner: Any, name: str) -> None:
        patch.setattr(owner, name, raising_once(error, getattr(owner, name)))

    match step:
        case "observe":
            patch.setattr(LoggedCall, "of", staticmethod(raising_once(error, LoggedCall.of)))
        case "reach":
            once(observing, "survey_call")
        case "begin":
            once(tracing, "Snapshot")
        case "trace":
            once(outcome, "make_signature")
        case "operator":
            once(TraceTape, "describe")
        case "lower":
            once(driver, "make_lowered")
        case "record":
            once(driver, "device_for")
        case "launch":
            once(driver, "make_recording")
            _first_launch(error, patch)
        case "capture":
            from treeplay.device.cuda import recording

            once(recording, "capture_work")
        case "relaunch":
            names = last_call(program).__globals__
            if names["run"].__name__ == "launch":
                names = names["run"].__globals__
                names["replay"] = raising_once(error, names["replay"])
            else:
                names["run"] = raising_once(error, names["run"])
        case "results":
            names = last_call(program).__globals__
            (name,) = (name for name, value in names.items() if value is Pair)
            names[name] = raising_once(error, Pair)


def _first_launch(error: BaseException, patch: pytest.MonkeyPatch) -> None:
    make = manager_make = driver.make_recording.__globals__["original"]

    def made(*args: Any, **kwargs: Any) -> Any:
        recording = make(*args, **kwargs)
        names = recording.call.__globals__
        names["run"] = raising_once(error, names["run"])
        patch.setattr(driver, "make_recording", manager_make)
        return recording

    patch.setattr(driver, "make_recording", made)


def last_call(program: Any) -> Any:
    return program._manager.cache.warm


WHEN = {"observe": 1, "reach": 1, "relaunch": 5, "results": 5, "capture": 3}  # else the second call


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check(step: str, kind: str, device: str, patch: pytest.MonkeyPatch) -> None:
    error = ERRORS[kind]()
    world, twin = World(device), World(device)
    program: Any = treeplay.jit(world.step, lower="aten")
    for call in range(1, CALLS + 1):
        x = torch.full((3,), float(call), device=device)
        before, is_failing = surroundings(), call == WHEN.get(step, 2)
        with patch.context() as context:
            if is_failing:
                inject(step, error, context, program)
            if is_failing and kind == "KeyboardInterrupt":
                with pytest.raises(KeyboardInterrupt, match="told to"):
                    program(x)
                if step == "reach":  # all has run by then
                    _as_before(before, twin, x)
                assert surroundings() == before
                assert_same(world.state(), twin.state())
                continue
            found = program(x)
        after = surroundings()
        expected = _as_before(before, twin, x)
        assert type(found) is Pair
        assert_same([found.total, found.rest], [expected.total, expected.rest])
        assert_same(world.state(), twin.state())
        assert after == before
    _check_account(program, kind, is_by_device=device == "cuda" and step == "relaunch")


def _as_before(before: dict[str, Any], twin: World, x: torch.Tensor) -> Pair:
    """The same call of the eager twin, which draws the same numbers."""
    torch.set_rng_state(torch.frombuffer(bytearray(before["generators"][0]), dtype=torch.uint8))
    expected = twin.step(x)
    before["generators"][0] = bytes(torch.get_rng_state().numpy())
    return expected


def _check_account(program: Any, kind: str, *, is_by_device: bool) -> None:
    """What is told of an error; a device that meets one before a launch tells of it itself, and runs out of memory unblamed."""
    statistics = program.statistics()
    (key,) = statistics.keys
    assert statistics.calls in ((CALLS - 1, CALLS) if kind == "KeyboardInterrupt" else (CALLS,))
    if kind == "Refusal":
        assert "told to" in program.explain() and not internal_errors()
        assert is_by_device or "told to" in str(key.refusal)
        return
    assert statistics.replays >= 2, "it never recovered"
    if kind == "KeyboardInterrupt" or (is_by_device and kind == "MemoryError"):
        assert not internal_errors() and not key.errors
        return
    assert counters["internal errors"] == {kind: 1}
    assert "told to" in internal_errors()[0] and 'fault.py", line 3' in internal_errors()[0]
    assert is_by_device or key.errors == internal_errors()
    assert "told to" in program.explain()


GATE = [
    ("observe", "KeyError"),
    ("reach", "RuntimeError"),
    ("begin", "KeyboardInterrupt"),
    ("operator", "KeyError"),
    ("launch", "RuntimeError"),
    ("relaunch", "KeyError"),
    ("relaunch", "Refusal"),
    ("results", "MemoryError"),
]


@pytest.mark.parametrize(("step", "kind"), GATE)
def test_a_call_has_its_effects_once_and_the_next_calls_recover(
    step: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check(step, kind, "cpu", monkeypatch)


STEPS = ("observe", "reach", "begin", "trace", "operator", "lower", "record", "launch", "relaunch")


@pytest.mark.soak
@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_Tplus6_every_error_at_every_step(device: str, step: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(step, kind, device, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["RuntimeError", "KeyError", "MemoryError"])
@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_Tplus6_every_error_while_results_are_built(device: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check("results", kind, device, monkeypatch)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["RuntimeError", "KeyError", "MemoryError", "KeyboardInterrupt"])
def test_Tplus6_every_error_while_capturing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, twin = World("cuda"), World("cuda")
    program: Any = treeplay.jit(world.step, lower="aten")
    for call in range(1, CALLS + 1):
        x = torch.full((3,), float(call), device="cuda")
        before, has_run = surroundings(), True
        with monkeypatch.context() as context:
            if call == WHEN["capture"]:
                inject("capture", ERRORS[kind](), context, program)
                has_run = kind != "KeyboardInterrupt"
            with suppress(KeyboardInterrupt):
                found = program(x)
        assert surroundings() == before
        if has_run:
            expected = twin.step(x)
            assert_same([found.total, found.rest], [expected.total, expected.rest])
        assert_same(world.state(), twin.state())
    launch = program.statistics().keys[0].recordings[-1].launch
    assert launch.stage == ("recorded" if kind == "KeyboardInterrupt" else "not recorded")
    assert sum(counters["internal errors"].values()) == (kind != "KeyboardInterrupt")


def test_an_error_that_comes_again_leaves_the_key_eager_until_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    world, twin = World("cpu"), World("cpu")
    program: Any = treeplay.jit(world.step, lower="aten")

    def fail(front: Any) -> Any:
        raise KeyError("every time")

    with monkeypatch.context() as context:
        context.setattr(driver, "make_lowered", fail)
        for call in range(6):
            x = torch.full((3,), float(call))
            with torch.random.fork_rng():
                expected = twin.step(x)
            assert_same(program(x).total, expected.total)
    (key,) = program.statistics().keys
    assert len(key.errors) == 2 == len(internal_errors()) and "an error of its own came twice" in str(key.refusal)
    program.reset()
    for _ in range(3):
        program(torch.ones(3))
    assert program.statistics().replays == 2


def test_errors_are_raised_where_refusals_are_and_nothing_has_run(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("cpu")
    program: Any = treeplay.jit(world.step, lower="aten", on_refusal="raise")
    program(torch.ones(3))
    total = world.total.clone()
    with monkeypatch.context() as context:
        inject("lower", KeyError("told to"), context, program)
        with pytest.raises(InternalError, match="KeyError: 'told to'"):
            program(torch.ones(3))
    assert_same(world.total, total)
    program(torch.ones(3))
    program(torch.ones(3))
    assert program.statistics().replays == 2


@pytest.mark.parametrize("writes", [False, True])
def test_an_operators_own_error_is_the_one_that_eager_raises_and_the_recording_stays(writes: bool) -> None:
    total = torch.ones(2)

    def program(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        if writes:
            total.mul_(2).add_(x[0])
        return x[at] * 3 - 1

    jitted: Any = treeplay.jit(program, lower="aten")
    x = torch.arange(3.0)
    for call in range(6):
        if call == 4:
            with pytest.raises(IndexError):
                jitted(x, torch.tensor([7]))
        else:
            assert_same(jitted(x, torch.tensor([2])), torch.tensor([5.0]))
    assert total[0] == (64 if writes else 1) and jitted.statistics().recordings == 1 and not internal_errors()


def test_an_exception_of_eagers_own_at_the_launch_is_no_error_of_ours() -> None:
    """A differentiable program that writes to a leaf: autograd refuses the write when the recording runs, and in eager."""
    weight = torch.ones(2)

    def program(x: torch.Tensor) -> torch.Tensor:
        weight.mul_(2)
        return x * weight - 1

    jitted: Any = treeplay.jit(program, lower="aten")
    for _ in range(3):
        jitted(torch.ones(2, requires_grad=True))
    weight.requires_grad_()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
            jitted(torch.ones(2, requires_grad=True))
    assert weight.tolist() == [8.0, 8.0] and not internal_errors()


def test_a_call_inside_of_somebodys_capture_runs_as_it_is_and_blames_nobody() -> None:
    total = torch.ones(2)

    def program(x: torch.Tensor) -> torch.Tensor:
        total.mul_(2).add_(x)
        return total - x

    jitted: Any = treeplay.jit(program, lower="aten")
    jitted(torch.ones(2))

    def nested(*_: Any, **__: Any) -> Any:
        raise UsageError("captures do not nest")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "device_for", nested)
        assert_same(jitted(torch.ones(2)), torch.full((2,), 6.0))
    for expected in (14.0, 30.0):
        assert_same(jitted(torch.ones(2)), torch.full((2,), expected))
    assert jitted.statistics().replays == 2 and not internal_errors()


def test_a_recording_that_did_not_fit_is_freed_once_if_the_next_one_breaks() -> None:
    jitted: Any = treeplay.jit(lambda x: x * 2 - 1, lower="aten", on_refusal="raise")
    x, freed = torch.ones(3), []
    jitted(x)
    recorder = jitted._manager._cold.__self__._recorder
    record = recorder._record

    def breaks(*_: Any) -> Any:
        raise RuntimeError("told to")

    def does_not_fit(*given: Any) -> Any:
        recorder._record = breaks
        return replace(record(*given), call=no_recording, free=lambda: freed.append(1))

    recorder._record = does_not_fit
    with pytest.raises(InternalError, match="recording a call"):
        jitted(x)
    assert freed == [1]

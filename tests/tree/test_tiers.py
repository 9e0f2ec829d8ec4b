"""Tiers: operators serve at once, what is compiled in the background takes over if it is faster, and each call runs once."""

from __future__ import annotations

import copy
import gc
import itertools
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import assert_same, the_recording, training
from treeplay.device.host import HostDevice
from treeplay.device.turns import turns
from treeplay.errors import LoweringError
from treeplay.lower.aten import lower_aten
from treeplay.lower.lowered import Lowered
from treeplay.lower.stream import lower_for_stream
from treeplay.observe import internal_errors
from treeplay.observe.progress import own_threads
from treeplay.plan.arena import plan_arena
from treeplay.record import front, lowered
from treeplay.torch_seam.dynamo import compile_lock
from treeplay.tree import tiers
from treeplay.tree.tiers import compile_thread
from treeplay.values.launch import LaunchFacts

pytestmark = pytest.mark.programs

CALLS = 40  # more than a trial takes
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Compiling:
    """Stands in for Inductor: takes until `ready`, and gives what runs the same operators, or raises `error`."""

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.error: Exception | None = None
        self.threads: list[str] = []

    def __call__(self, graph: torch.fx.Graph, *, device: torch.device, **_: Any) -> Lowered:
        self.threads.append(threading.current_thread().name)
        assert self.ready.wait(30)
        if self.error is not None:
            raise self.error
        made = lower_aten(graph, plan_arena(graph)) if device.type == "cpu" else lower_for_stream(graph, device)
        return replace(made, name="inductor", body=made.body)


class Watch:
    """Says what each launch took: as if operators, which are timed first, took ten times as long, or a tenth."""

    new_takes = 0.1
    _count = 0

    def start(self) -> None:
        self._which = Watch._count % 2
        Watch._count += 1

    def stop(self) -> None:
        pass

    def seconds(self) -> float | None:
        return self.new_takes if self._which else 1.0


@pytest.fixture(autouse=True)
def in_the_background(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # that ends after this
    with treeplay.settings.changed(tiers="background", compare_with_eager=False):
        yield
    assert compile_thread.wait(30)


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiling]:
    made = Compiling()
    monkeypatch.setattr(lowered, "lower_inductor", made)
    monkeypatch.setattr(Watch, "_count", 0)
    monkeypatch.setattr(HostDevice, "stopwatch", lambda self: Watch())
    if torch.cuda.is_available():
        from treeplay.device.cuda.device import CudaDevice

        monkeypatch.setattr(CudaDevice, "stopwatch", lambda self: Watch())
    yield made
    made.ready.set()


@pytest.fixture(autouse=True)
def a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    found = type("Compiler", (), {"path": "somewhere"})()
    monkeypatch.setattr(front, "find_compiler", lambda: found)
    monkeypatch.setattr(front, "find_gpu_compiler", lambda: found)


def a_step(device: str) -> tuple[Any, nn.Module]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).to(device)
    return training(model, torch.optim.AdamW(model.parameters(), lr=0.1, capturable=device == "cuda")), model


@pytest.mark.parametrize("device", DEVICES)
def test_operators_serve_until_what_is_compiled_is_ready_and_faster(compiling: Compiling, device: str) -> None:
    (step, model), (eager, twin) = a_step(device), a_step(device)
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    jitted = treeplay.jit(step)
    # On a GPU, eager's optimizer and layers round otherwise, and eighty steps of training add that up.
    near = {"rtol": 1e-3, "atol": 1e-3} if device == "cuda" else {}
    for call in range(2 * CALLS):
        if call == 5:
            assert the_recording(jitted).lowering == "aten" and "in the background" in jitted.explain()
            compiling.ready.set()
            assert compile_thread.wait(30)
        x, y = torch.randn(3, 4, device=device) * (call % 3), torch.randn(3, 2, device=device)
        torch.testing.assert_close(jitted(x, y), eager(x, y), **near)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, twin.state_dict()[name], **near)
    found = the_recording(jitted)
    assert found.lowering == "inductor" and "Inductor's was tried" in found.tier and found.tier in jitted.explain()
    assert compiling.threads == ["treeplay compiles"] and jitted.statistics().recordings == 1
    assert found.launch.stage == ("recorded" if device == "cuda" else "bound")
    assert found.seconds["lower in the background"] > 0


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What recordings on the CPU do, which count from 0."""
    log: list[str] = []
    numbers_of_recordings = itertools.count()
    record = HostDevice.record

    def noting(self: HostDevice, work: Any) -> Any:
        made, name = record(self, work), f"recording {next(numbers_of_recordings)}"

        def replay(tensors: Any, numbers: Any) -> Any:
            log.append(f"{name} runs")
            return made.replay(tensors, numbers)

        def free() -> None:
            log.append(f"{name} is freed")
            made.free()

        forget = lambda: log.append(f"{name} forgets")  # noqa: E731
        return replace(made, replay=replay, free=free, subscribe=lambda _: None, forget_results=forget)

    monkeypatch.setattr(HostDevice, "record", noting)
    return log


def test_on_trial_one_lets_go_of_its_results_before_the_other_makes_them(compiling: Compiling, log: list[str]) -> None:
    jitted, x = treeplay.jit(lambda x: x * 2 - 1), torch.randn(4)
    for call in range(CALLS):
        if call == 4:
            compiling.ready.set()
            assert compile_thread.wait(30)
            log.clear()
        assert_same(jitted(x), x * 2 - 1)
    runs = [at for at, what in enumerate(log) if what.endswith("runs")]
    assert {log[at] for at in runs} == {"recording 0 runs", "recording 1 runs"}
    for before, at in itertools.pairwise(runs):
        if log[before] != log[at]:
            assert log[before].replace("runs", "forgets") in log[before:at]


def test_what_is_freed_since_it_is_not_faster_does_not_run_again(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch, log: list[str]
) -> None:
    monkeypatch.setattr(Watch, "new_takes", 10.0)
    compiling.ready.set()
    jitted, x = treeplay.jit(lambda x: x * 2 - 1), torch.randn(4)
    for call in range(CALLS):
        if call == 3:
            assert compile_thread.wait(30)
        assert_same(jitted(x), x * 2 - 1)
    assert "recording 1 runs" not in log[log.index("recording 1 is freed") :]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_faster_does_not_stay(compiling: Compiling, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.setattr(Watch, "new_takes", 10.0)
    compiling.ready.set()
    counted = torch.zeros(2, device=device)

    def program(x: torch.Tensor) -> torch.Tensor:
        counted.add_(x).mul_(1.5)
        return counted * 2 - x

    jitted, expected = treeplay.jit(program), torch.zeros(2, device=device)
    for call in range(CALLS):
        if call == 3:
            assert compile_thread.wait(30)
        x = torch.full((2,), float(call % 3), device=device)
        expected = (expected + x) * 1.5  # each call has its effects once, whichever of the two it runs
        assert_same(jitted(x), expected * 2 - x)
    assert the_recording(jitted).lowering == "aten" and "they stay" in the_recording(jitted).tier


def test_what_cannot_be_compiled_goes_on_as_it_is(compiling: Compiling) -> None:
    compiling.error = LoweringError("told to")
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    for call in range(6):
        assert_same(jitted(torch.ones(2) * call), torch.ones(2) * call * 2 - 1)
        assert compile_thread.wait(30)
    found = the_recording(jitted)
    assert found.lowering == "aten" and found.passed_over == ("inductor: told to",) and "could not" in found.tier


def test_an_error_of_treeplays_own_is_told_and_nothing_else(compiling: Compiling) -> None:
    compiling.error = KeyError("told to")
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in range(6):
            assert_same(jitted(torch.ones(2) * call), torch.ones(2) * call * 2 - 1)
            assert compile_thread.wait(30)
    assert the_recording(jitted).lowering == "aten" and len(internal_errors()) == 1


def test_a_program_that_is_dropped_is_kept_by_no_compilation(compiling: Compiling) -> None:
    model = nn.Linear(2, 2)
    jitted: Any = treeplay.jit(model)
    with torch.no_grad():
        for _ in range(4):
            jitted(torch.ones(2))
    gone, weight = weakref.ref(jitted), weakref.ref(model.weight)
    del jitted
    assert gone() is None
    compiling.ready.set()
    assert compile_thread.wait(30)
    del model
    gc.collect()
    assert weight() is None


def test_a_program_that_is_reset_meanwhile_is_recorded_anew(compiling: Compiling) -> None:
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    for _ in range(3):
        jitted(torch.ones(2))
    jitted.reset()
    compiling.ready.set()
    for call in range(2 * CALLS):
        assert_same(jitted(torch.ones(2) * call), torch.ones(2) * call * 2 - 1)
        assert compile_thread.wait(30)
    assert the_recording(jitted).lowering == "inductor", the_recording(jitted).tier


def test_reset_in_the_middle_of_a_trial(compiling: Compiling) -> None:
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    for call in range(3 * CALLS):
        if call in (6, 9):
            assert call == 9 or "trial" in the_recording(jitted).tier
            jitted.reset()
            Watch._count = 0
        assert_same(jitted(torch.ones(2) * call), torch.ones(2) * call * 2 - 1)
        assert compile_thread.wait(30)
    assert the_recording(jitted).lowering == "inductor", the_recording(jitted).tier


@pytest.mark.parametrize(
    ("before", "meanwhile", "after"), [(0.005, None, 0.005), (0.0001, None, 0.0001), (0.005, 0.002, 0.002)]
)
def test_threads_take_turns_often_while_something_is_compiled(
    before: float, meanwhile: float | None, after: float
) -> None:
    usual, seen = sys.getswitchinterval(), []

    def work() -> None:
        seen.append(sys.getswitchinterval())
        if meanwhile is not None:
            sys.setswitchinterval(meanwhile)  # somebody else's wish

    try:
        sys.setswitchinterval(before)
        compile_thread.add(work)
        assert compile_thread.wait(30)
        assert seen == [pytest.approx(min(before, tiers._TURN))] and sys.getswitchinterval() == pytest.approx(after)
    finally:
        sys.setswitchinterval(usual)


def test_an_error_in_the_background_ends_no_more_than_its_own_work() -> None:
    done: list[int] = []

    def fails() -> None:
        raise ValueError("of our own")

    with pytest.warns(UserWarning, match="of our own"):
        for work in (partial(done.append, 1), fails, partial(done.append, 2)):
            compile_thread.add(work)
        assert compile_thread.wait(30)
    assert done == [1, 2] and "ValueError: of our own" in internal_errors()[-1]


@pytest.mark.parametrize("how", ["exact", "deterministic", "asked for"])
def test_one_tier_where_results_may_depend_on_no_clock(compiling: Compiling, how: str) -> None:
    compiling.ready.set()
    torch.use_deterministic_algorithms(how == "deterministic")
    try:
        with treeplay.settings.changed(tiers="exact" if how == "exact" else "background"):
            jitted = treeplay.jit(lambda x: x * 2 - 1, lower="inductor" if how == "asked for" else "auto")
            for _ in range(3):
                jitted(torch.ones(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert the_recording(jitted).lowering == "inductor" and compiling.threads == ["MainThread"]


def test_time_in_the_background_counts_against_the_budget(compiling: Compiling) -> None:
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    for rank in range(1, 6):
        for _ in range(3):
            jitted(torch.ones([2] * rank))
            assert compile_thread.wait(30)
    assert len(compiling.threads) == 5
    budget, seconds = (
        jitted._manager.cache.budget,
        [
            recording.seconds["lower in the background"]
            for key in jitted.statistics().keys
            for recording in key.recordings
        ],
    )
    assert budget._spent >= sum(sorted(seconds)[:2])  # three kinds of calls are free


def test_further_kinds_are_compiled_when_the_budget_has_room_for_that(compiling: Compiling) -> None:
    """Each is replayed meanwhile: recording operators takes a small part of what compiling does."""
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    budget = jitted._manager.cache.budget

    def call(rank: int) -> None:
        x = torch.ones([2] * rank)
        for _ in range(3):
            assert_same(jitted(x), x)
            assert compile_thread.wait(30)

    for rank in (1, 2, 3):
        call(rank)
    budget._longest = 100.0
    with treeplay.settings.changed(compile_budget=1.0):
        budget._spent = -50.0  # as if fifty seconds were left
        for rank in (4, 5):
            call(rank)
        assert len(compiling.threads) == 3 and jitted.statistics().recordings == 5
        assert "when the compile budget has room" in jitted.explain()
        budget._spent = -200.0
        call(4)  # by its key
        call(5)
    assert len(compiling.threads) == 5 and "when the compile budget has room" not in jitted.explain()


def test_further_kinds_wait_until_nothing_is_compiled(compiling: Compiling) -> None:
    """Beside a compilation, recording takes several times as long."""
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    jitted._manager.cache.leave_alone = lambda *_, **__: None  # each call is looked at
    with treeplay.settings.changed(compile_budget=1e9):
        for rank in (1, 2, 3, 4, 4, 4):
            for _ in range(3):
                jitted(torch.ones([2] * rank))
        assert jitted.statistics().recordings == 3 and compile_thread.is_busy
        compiling.ready.set()
        assert compile_thread.wait(30) and not compile_thread.is_busy
        for _ in range(3):
            assert_same(jitted(torch.ones(2, 2, 2, 2)), torch.ones(2, 2, 2, 2))
    assert jitted.statistics().recordings == 4


def test_a_kind_that_is_all_that_comes_is_compiled_too_when_there_is_room(compiling: Compiling) -> None:
    """Its calls are warm: nothing looks at them but now and then."""
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    budget = jitted._manager.cache.budget
    for rank in (1, 2, 3):
        for _ in range(3):
            jitted(torch.ones([2] * rank))
            assert compile_thread.wait(30)
    with treeplay.settings.changed(compile_budget=1.0):
        budget._spent, budget._longest = -50.0, 100.0
        for _ in range(CALLS):
            jitted(torch.ones(2, 2, 2, 2))
        assert compile_thread.wait(30) and len(compiling.threads) == 3
        budget._spent = -200.0
        for _ in range(2 * CALLS):
            jitted(torch.ones(2, 2, 2, 2))
    assert compile_thread.wait(30) and len(compiling.threads) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # it is what is tested
def test_a_child_that_is_forked_meanwhile_can_compile(compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    holds = threading.Event()

    def locked(*args: Any, **kwargs: Any) -> Lowered:
        with compile_lock():
            holds.set()
            return compiling(*args, **kwargs)

    monkeypatch.setattr(lowered, "lower_inductor", locked)
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    for _ in range(3):
        jitted(torch.ones(2))
    assert holds.wait(30)
    child = os.fork()
    if child == 0:
        os._exit(0 if compile_lock().acquire(timeout=5) else 1)  # type: ignore[attr-defined]
    assert os.waitpid(child, 0)[1] == 0


def test_what_is_about_to_be_captured_is_captured_before_its_next_tier_is_compiled() -> None:
    class Warming:
        is_dropped, stage = False, "warming"

        def launch(self) -> LaunchFacts:
            return LaunchFacts("cuda:0", self.stage)

    recording: Any = Warming()
    waiting = threading.Thread(target=tiers._after_capture, args=(lambda: recording,))
    waiting.start()
    with turns.making():  # a call has come, which captures
        recording.stage = "recorded"
        waiting.join(0.1)
        assert waiting.is_alive()
    waiting.join(10)
    assert not waiting.is_alive()


def test_what_nobody_calls_is_compiled_without_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "_FOR_A_CAPTURE", 0.01)
    recording: Any = type(
        "Warming", (), {"is_dropped": False, "launch": lambda self: LaunchFacts("cuda:0", "warming")}
    )()
    tiers._after_capture(lambda: recording)


@pytest.mark.gpu
def test_a_first_tier_is_captured_before_its_next_one_is_compiled(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    from treeplay.device.cuda.recording import CudaRecording

    order: list[str] = []
    capture = CudaRecording._capture

    def captured(self: Any, *args: Any) -> Any:
        order.append(f"captured while {len(compiling.threads)} are compiled")
        return capture(self, *args)

    monkeypatch.setattr(CudaRecording, "_capture", captured)
    step, _ = a_step("cuda")
    jitted = treeplay.jit(step)
    for _ in range(5):
        jitted(torch.randn(3, 4, device="cuda"), torch.randn(3, 2, device="cuda"))
    compiling.ready.set()
    assert compile_thread.wait(30)
    assert order[0] == "captured while 0 are compiled" and len(compiling.threads) == 1


def test_a_program_that_no_lowering_takes_is_refused(compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Lowered:
        raise LoweringError("nor this")

    compiling.error = LoweringError("it cannot take this")
    compiling.ready.set()
    monkeypatch.setattr(lowered, "lower_aten", fail)
    jitted = treeplay.jit(lambda x: x * 2 - 1, on_refusal="raise")
    jitted(torch.ones(3))
    with pytest.raises(treeplay.Refusal, match=r"inductor: it cannot take this; aten: nor this"):
        jitted(torch.ones(3))
    assert not internal_errors()


def test_a_tensor_that_grows_in_place_is_refused_with_its_line(compiling: Compiling) -> None:
    jitted = treeplay.jit(lambda x: torch.zeros(1).resize_(2, 3).zero_() + x, on_refusal="raise")
    jitted(torch.ones(3))
    with pytest.raises(treeplay.Refusal, match=r"lower: inductor, aten: aten.resize_.default resizes a tensor .*\.py"):
        jitted(torch.ones(3))
    assert not internal_errors()


def test_what_only_inductor_takes_is_compiled_before_it_serves(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Lowered:
        raise LoweringError("it cannot take this")

    monkeypatch.setattr(lowered, "lower_aten", fail)
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    for _ in range(3):
        assert_same(jitted(torch.ones(2)), torch.ones(2))
    assert jitted.statistics().replays == 2 and the_recording(jitted).lowering == "inductor"
    assert threading.current_thread().name in compiling.threads


def test_settings_of_tiers() -> None:
    with pytest.raises(treeplay.errors.ArgumentError, match="expected 'background' or 'exact', found 'fast'"):
        treeplay.settings.tiers = "fast"


def test_a_process_that_ends_meanwhile_ends_soon(fresh_python: Any) -> None:
    out, err = fresh_python(
        "import time, torch, treeplay\n"
        "from treeplay.record import lowered\n"
        "def slowly(*_, **__):\n"
        "    while True: torch.ones(3).add(1)\n"
        "lowered.lower_inductor = slowly\n"
        "jitted = treeplay.jit(lambda x: x * 2 - 1)\n"
        "for _ in range(4): jitted(torch.ones(2))\n"
        "import atexit; start = time.time(); atexit.register(lambda: print(time.time() - start < 10))\n",
    )
    assert (out, err) == ("True", "")


def test_the_thread_is_no_company_that_draws(compiling: Compiling) -> None:
    compiling.ready.set()
    jitted = treeplay.jit(lambda x: x * 2 - 1)
    for _ in range(3):
        jitted(torch.ones(2))
    assert compile_thread.wait(30) and compile_thread._thread is not None
    assert compile_thread._thread.ident in own_threads and threading.get_ident() not in own_threads

"""Programs whose calls keep being new to treeplay cost little more than eager, and are told what varies."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

import treeplay
from support import assert_same, jit
from treeplay.settings import Settings
from treeplay.tree.worth import budget

pytestmark = pytest.mark.filterwarnings("ignore:treeplay runs")
OVER = "new, and over the compile budget"


def scaled(x: torch.Tensor, number: Any = 2) -> torch.Tensor:
    return x * number - 1


def scaled_by_one_of(x: torch.Tensor, numbers: tuple[int, ...]) -> torch.Tensor:
    """Numbers in containers are no inputs."""
    return x * numbers[0] - 1


held = SimpleNamespace(rate=1.0)


def asks_for_a_type(x: torch.Tensor) -> torch.Tensor:
    """Numbers are no inputs of what asks for the type of a tensor."""
    return x * held.rate - (1 if type(x) is torch.Tensor else 2)


@pytest.fixture(autouse=True)
def the_usual_budget() -> Iterator[None]:
    with treeplay.settings.changed(compile_budget=Settings().compile_budget):
        yield


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of budgets: it stands still, or goes by `step` at each look."""
    time = SimpleNamespace(now=0.0, step=0.0)

    def perf_counter() -> float:
        time.now += time.step
        return time.now

    for module in (budget, sys.modules[Settings.__module__]):
        monkeypatch.setattr(module, "perf_counter", perf_counter)
    return time


def test_a_number_that_never_comes_again_is_observed_three_times() -> None:
    jitted, x = jit(scaled_by_one_of, on_refusal="eager"), torch.randn(3)
    for number in range(60):
        assert_same(jitted(x, (number,)), scaled(x, number))
    found = jitted.statistics()
    assert found.not_replayed == {"observed": 3, OVER: 57}
    assert (found.calls, found.eager_calls, found.recordings) == (60, 60, 0)


def test_what_varies_is_told_once_at_the_fourth_key() -> None:
    jitted, x = jit(scaled_by_one_of, on_refusal="eager"), torch.randn(3)
    for number in range(3):
        jitted(x, (number,))
    with pytest.warns(
        UserWarning, match=r"what varies from call to call is args\[1\]\[0\], .* 10% of the time"
    ) as told:
        for number in range(3, 9):
            jitted(x, (number,))
    assert len(told) == 1


def test_the_first_three_sizes_are_recorded_whatever_they_take(clock: SimpleNamespace) -> None:
    clock.step = 1000.0
    jitted = jit(scaled, on_refusal="eager")
    for size in (2, 3, 4) * 3:
        assert_same(jitted(torch.ones(size)), torch.ones(size))
    assert (jitted.statistics().recordings, jitted.statistics().replays) == (3, 6)


def test_a_further_size_is_recorded_when_the_budget_is_there_again(clock: SimpleNamespace) -> None:
    jitted = jit(scaled, on_refusal="eager")
    for size in (2, 3, 4) * 2:
        jitted(torch.ones(size))
    clock.step = 1.0
    for _ in range(3):
        jitted(torch.ones(5))
    assert jitted.statistics().recordings == 3 and jitted.statistics().not_replayed[OVER] == 2
    clock.now += 100.0
    for _ in range(2):
        assert_same(jitted(torch.ones(5)), torch.ones(5))
    assert jitted.statistics().recordings == 4


def test_without_a_limit_all_sizes_are_recorded() -> None:
    jitted = jit(scaled, on_refusal="eager")
    with treeplay.settings.changed(compile_budget=math.inf):
        for size in range(1, 9):
            for _ in range(2):
                jitted(torch.ones(size))
    assert jitted.statistics().recordings == 8


def test_after_three_keys_that_never_came_again_one_has_to_come_twice() -> None:
    jitted, x = jit(scaled_by_one_of, on_refusal="eager"), torch.randn(3)
    with treeplay.settings.changed(compile_budget=1e12):
        for number in (0, 1, 2, 3, 4, 3, 3):
            assert_same(jitted(x, (number,)), scaled(x, number))
    assert jitted.statistics().not_replayed == {"observed": 4, OVER: 2}
    assert jitted.statistics().recordings == 1


def with_quick_looks(jitted: Any) -> Any:
    """As if a look took a hundredth of a call, on any machine."""
    cache = jitted._manager.cache
    leave_alone = cache.leave_alone
    cache.leave_alone = lambda entry, call, why, **_: leave_alone(entry, call, why, cost=1e-5, ran=1e-3)
    return jitted


def test_keys_that_come_in_turn_do_not_drive_each_other_out() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 3 - 1

    jitted = with_quick_looks(jit(program, on_refusal="eager", lower="aten"))
    with treeplay.settings.changed(compile_budget=1e12, max_recordings_per_program=4):
        for number in range(200):
            x = torch.randn(number % 10)
            assert_same(jitted(x), program(x))
        found = jitted.statistics()
        assert found.dropped == 0 and found.recordings == 4 and found.replays > 50, jitted.explain()
        for number in range(60):  # from now on there are others, which find their places
            x = torch.randn(20 + number % 3)
            assert_same(jitted(x), program(x))
        found = jitted.statistics()
        assert found.dropped == 3 and found.recordings == 7, jitted.explain()


def test_forty_lengths_in_turn_are_all_replayed_once_the_budget_has_allowed_them(
    device: str, clock: SimpleNamespace
) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 3 - 1).cumsum(0)

    clock.step = 0.001
    jitted, lengths = with_quick_looks(jit(program, on_refusal="eager")), [1 + number * 7 % 40 for number in range(40)]
    jitted(torch.ones(1, device=device))
    for length in lengths * 2:
        jitted(torch.ones(length, device=device))
    assert jitted.statistics().recordings < 40
    for length in lengths * 100:
        clock.now += 0.01
        jitted(torch.ones(length, device=device))
    before = jitted.statistics()
    assert before.recordings == 40 and before.dropped == 0, jitted.explain()
    for length in lengths * 2:
        x = torch.arange(float(length), device=device)
        assert_same(jitted(x), program(x))
    assert jitted.statistics().replays == before.replays + 80


def test_most_calls_of_a_refused_program_are_not_looked_at() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    jitted, looks = jit(read, on_refusal="eager"), []
    find = jitted._manager.cache.keys.find
    jitted._manager.cache.keys.find = lambda call: (looks.append(1), find(call))[1]
    for number in range(3000):
        assert_same(jitted(torch.tensor([number, 2.0])), read(torch.tensor([number, 2.0])))
    found = jitted.statistics()
    assert len(looks) < 300 and (found.calls, found.eager_calls) == (3000, 3000)
    assert found.not_replayed == {"observed": 1, "refused": 2999}
    assert sum(key.eager_calls for key in found.keys) == 3000


def test_a_program_that_is_replayed_now_and_then_is_looked_at_in_each_call() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item() if x.shape[0] == 2 else x * 3 - 1

    jitted = with_quick_looks(jit(read, on_refusal="eager"))
    for _ in range(50):
        for size in (2, 2, 2, 2, 2, 3):
            assert_same(jitted(torch.ones(size)), read(torch.ones(size)))
    assert jitted.statistics().replays == 50 - 1


def test_calls_that_are_not_looked_at_raise_what_eager_raises_and_end_with_a_reset() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() < 0:
            raise KeyError("negative")
        return x * 2

    jitted, x = jit(read, on_refusal="eager"), torch.ones(2)
    for _ in range(200):
        jitted(x)
    assert jitted._manager.cache.pause.left
    with pytest.raises(KeyError, match="negative"):
        jitted(-x)
    jitted.reset()
    jitted(x)
    assert jitted.statistics().not_replayed["observed"] == 2


def test_most_calls_of_a_program_that_raises_at_its_end_are_not_observed() -> None:
    total, expected = torch.zeros(3), torch.zeros(3)

    def step(x: torch.Tensor) -> None:
        total.mul_(0.5).add_(x)
        raise KeyError("no")

    jitted = jit(step, on_refusal="eager")
    for number in range(600):
        with pytest.raises(KeyError, match="no"):
            jitted(torch.full((3,), float(number)))
        expected.mul_(0.5).add_(number)
    assert_same(total, expected)
    found = jitted.statistics()
    assert found.not_replayed["observed"] < 60 and found.calls == found.eager_calls == 600
    assert found.not_replayed["ended by an error"] == 600 - found.not_replayed["observed"]
    assert "calls were ended by an error" in jitted.explain()


def test_most_calls_of_a_refused_program_that_raises_are_not_looked_at() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() < 0:
            raise KeyError("negative")
        return x * 2

    jitted, x = jit(read, on_refusal="eager"), torch.ones(2)
    jitted(x), jitted(x)
    for _ in range(200):
        with pytest.raises(KeyError, match="negative"):
            jitted(-x)
    assert jitted._manager.cache.pause.left and jitted.statistics().calls == 202


def test_a_program_that_raised_in_its_first_calls_is_recorded_once_it_does_not() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        if is_early:
            raise KeyError("early")
        return x * 2 - 1

    jitted, is_early = jit(step), True
    for _ in range(8):
        with pytest.raises(KeyError, match="early"):
            jitted(torch.ones(3))
    is_early = False
    for _ in range(8):
        assert_same(jitted(torch.ones(3)), torch.ones(3))
    assert jitted.statistics().replays >= 5


def test_what_changes_in_each_call_before_there_is_a_recording_is_observed_a_few_times() -> None:
    jitted = jit(asks_for_a_type, on_refusal="eager")
    for number in range(20):
        held.rate = number + 0.5
        assert_same(jitted(torch.ones(3)), torch.ones(3) * held.rate - 1)
    assert jitted.statistics().not_replayed["observed"] <= 6 and jitted.statistics().refusals == 1
    assert "asks_for_a_type had changed since it was observed 4 times" in jitted.explain()


def test_what_observing_and_tracing_took_counts_for_when_a_refused_key_is_tried_again(clock: SimpleNamespace) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        clock.now += 1.0
        return asks_for_a_type(x)

    jitted = jit(step, on_refusal="eager")
    for number in range(20):
        held.rate = number + 0.5
        jitted(torch.ones(3))
    assert jitted.statistics().refusals == 1  # after some seconds, of which the next try may take a tenth


def reads_if(setting: Any) -> Any:
    """A program that cannot be recorded as long as its setting says so."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return x * 2 - (x.sum().item() if setting.reads else 1)

    return step


def test_a_refused_program_is_looked_at_again_once_a_setting_that_it_reads_has_changed(clock: SimpleNamespace) -> None:
    setting = SimpleNamespace(reads=True)
    step = reads_if(setting)
    jitted = jit(step, on_refusal="eager")
    for number in range(1000):
        setting.reads = number < 4
        clock.now += 0.1
        x = torch.tensor([number, 2.0])
        assert_same(jitted(x), step(x))
    assert jitted.statistics().refusals == 1 and jitted.statistics().replays > 900


def test_a_refusal_that_is_to_be_raised_is_raised_until_such_a_setting_has_changed(clock: SimpleNamespace) -> None:
    setting, x = SimpleNamespace(reads=True), torch.tensor([3.0, 2.0])
    step = reads_if(setting)
    jitted = jit(step, on_refusal="raise")
    jitted(x)
    for _ in range(3):
        clock.now += 100.0
        with pytest.raises(treeplay.Refusal, match="item"):
            jitted(x)
    setting.reads = False
    clock.now += 100.0
    for _ in range(3):
        assert_same(jitted(x), step(x))
    assert jitted.statistics().refusals == 1 and jitted.statistics().replays == 2


def test_a_refused_program_that_counts_is_looked_at_ever_more_rarely(clock: SimpleNamespace) -> None:
    counter = SimpleNamespace(calls=0)

    def step(x: torch.Tensor) -> torch.Tensor:
        counter.calls += 1
        return x * counter.calls - x.sum().item()

    jitted = jit(step, on_refusal="eager")
    for number in range(300):
        clock.now += 10.0
        assert_same(jitted(torch.ones(3)), torch.ones(3) * (number + 1) - 3)
    assert 2 < jitted.statistics().refusals < 15 and counter.calls == 300


def test_what_is_recorded_without_a_trace_is_refused_for_good(clock: SimpleNamespace) -> None:
    setting = SimpleNamespace(reads=True)
    step = reads_if(setting)
    jitted = jit(step, on_refusal="eager", lower="capture")
    for number in range(50):
        setting.reads = number < 4
        clock.now += 10.0
        assert_same(jitted(torch.ones(3)), step(torch.ones(3)))
    assert jitted.statistics().not_replayed == {"observed": 1, "refused": 49}


def test_a_call_under_a_mode_counts_as_that_also_where_calls_are_left_alone() -> None:
    def read(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    jitted, x = jit(read, on_refusal="eager"), torch.ones(2)
    for _ in range(200):
        jitted(x)
    left = jitted._manager.cache.pause.left
    with Mode():
        assert_same(jitted(x), read(x))
    assert jitted._manager.cache.pause.left == left > 0
    assert jitted.statistics().not_replayed["refused"] == 199 and jitted.statistics().calls == 201


def read_and_doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 * bool(x.sum().item())


def left_alone(program: Any) -> Any:
    """A program whose calls are not looked at for a while."""
    jitted = jit(program, on_refusal="eager")
    for _ in range(200):
        jitted(torch.ones(2))
    assert jitted._manager.cache.pause.left > 8
    return jitted


def test_calls_that_are_looked_at_after_all_count_once() -> None:
    jitted = left_alone(read_and_doubled)
    before = jitted.statistics().calls
    jitted._manager.cache.look_again()
    for _ in range(3):
        jitted(torch.ones(2))
    assert jitted.statistics().calls == before + 3


def test_calls_of_several_threads_that_are_not_looked_at_are_all_counted() -> None:
    jitted, before = left_alone(read_and_doubled), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda _: [jitted(torch.ones(2)) for _ in range(250)], range(4)):
                pass
    finally:
        sys.setswitchinterval(before)
    assert jitted.statistics().calls == 1200 and not jitted._manager.gate.threads


def test_a_program_that_calls_itself_is_inside_until_it_returns() -> None:
    def program(x: torch.Tensor, deeper: int = 2) -> torch.Tensor:
        seen.append(jitted._manager.gate.threads.get(get_ident()))
        return jitted(x, deeper - 1) if deeper and x.sum().item() else x * 2

    seen: list[int | None] = []
    jitted = jit(program, on_refusal="eager")
    for _ in range(200):
        jitted(torch.ones(2))
    pause = jitted._manager.cache.pause
    pause.left = max(pause.left, 9)
    pause._counted = pause.left
    del seen[:]
    assert_same(jitted(torch.ones(2)), torch.ones(2) * 2)
    assert seen == [1, 2, 3] and not jitted._manager.gate.threads


def test_who_records_waits_for_a_call_that_is_not_looked_at() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if blocks:
            begun.set()
            assert goes_on.wait(30)
            ended.append("the call")
        return read_and_doubled(x)

    blocks, ended = False, list[str]()
    begun, goes_on = threading.Event(), threading.Event()
    jitted = left_alone(program)
    gate, blocks = jitted._manager.gate, True
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(jitted, torch.ones(2))
        assert begun.wait(30)
        with gate.lock:
            gate.closer = get_ident()
            goes_on.set()
            gate.drain()
            ended.append("the wait")
            gate.closer = None
        assert_same(call.result(), torch.ones(2) * 2)
    assert ended == ["the call", "the wait"] and not gate.threads


def test_a_call_that_is_not_looked_at_waits_its_turn_while_another_thread_records() -> None:
    jitted = left_alone(read_and_doubled)
    gate, left = jitted._manager.gate, jitted._manager.cache.pause.left
    gate.closer = -1
    assert_same(jitted(torch.ones(2)), torch.ones(2) * 2)
    gate.closer = None
    assert jitted._manager.cache.pause.left >= left and jitted.statistics().calls == 201


def test_the_last_call_of_a_pause_tells_what_a_call_takes() -> None:
    pause = budget.Pause()
    for _ in range(30):
        pause.looked(budget.Entry({}), "refused", cost=1e-4, ran=1e-3, served=0)
    assert pause.left == 20
    pause.last = 1e-4
    pause.looked(budget.Entry({}), "refused", cost=1e-4, ran=1e-3, served=0)
    # The rest of what the call that was looked at took belongs to the look.
    assert pause.left == pytest.approx(2000, abs=1)
    pause.looked(budget.Entry({}), "refused", cost=1e-4, ran=1e-4, served=0)
    assert pause.left == pytest.approx(200, abs=1)


def test_a_look_that_leads_to_a_recording_has_the_next_calls_looked_at(clock: SimpleNamespace) -> None:
    jitted = jit(scaled, on_refusal="eager")
    for size in (2, 3, 4) * 2:
        jitted(torch.ones(size))
    clock.step = 0.01  # a look takes more than a call
    for _ in range(60):
        jitted(torch.ones(5))
    pause = jitted._manager.cache.pause
    assert jitted.statistics().recordings == 3 and pause._looks > 8
    clock.now, clock.step = clock.now + 1000.0, 0.0
    calls = 0
    while jitted.statistics().recordings == 3:
        assert_same(jitted(torch.ones(5)), torch.ones(5))
        calls += 1
        assert calls < 5000
    assert pause._looks == 0 and pause.left == 0


def test_the_last_call_of_a_pause_is_timed() -> None:
    jitted = left_alone(read_and_doubled)
    pause = jitted._manager.cache.pause
    for _ in range(pause.left - 1):
        jitted(torch.ones(2))
    assert pause.left == 1 and pause.last == math.inf
    jitted(torch.ones(2))
    assert pause.left == 0 and 0 < pause.last < math.inf


@pytest.mark.parametrize(
    ("cost", "ran", "left"), [(1e-4, 1.0, 0), (1e-4, 1e-3, 20), (1e-4, 1e-6, 500), (1.0, 1e-6, 4096)]
)
def test_a_pause_is_as_long_as_a_look_was_dear(cost: float, ran: float, left: int) -> None:
    pause = budget.Pause()
    lengths = []
    for _ in range(30):
        pause.looked(budget.Entry({}), "refused", cost=cost, ran=ran, served=0)
        lengths.append(pause.left)
    assert lengths[:7] == [0] * 7 and lengths == sorted(lengths) and lengths[-1] == left


@pytest.mark.parametrize(
    ("cost", "others", "is_paused"), [(1e-5, 4, False), (1e-5, 40, True), (1e-4, 4, True), (1e-7, 40, False)]
)
def test_calls_that_are_replayed_pay_for_looks_at_others(cost: float, others: int, is_paused: bool) -> None:
    pause = budget.Pause()
    for number in range(100 * others):
        pause.looked(budget.Entry({}), "refused", cost=cost, ran=1e-4, served=number // others)
    assert bool(pause.left) == is_paused


def test_numbers_that_cannot_be_inputs_leave_the_first_three_keys_free(clock: SimpleNamespace) -> None:
    clock.step = 1000.0
    jitted, x = jit(lambda x, number: x * math.hypot(number, 2), on_refusal="eager"), torch.randn(3)
    for number in (0.5, 0.7, 0.7, 0.9, 0.5, 0.5, 0.7, 0.7, 0.9, 0.9, 0.5, 0.7, 0.9):
        assert_same(jitted(x, number), x * math.hypot(number, 2))
    assert jitted.statistics().recordings == 3

"""Handlers of signals: what they do while a program is watched is none of the program's, and what they raise ends the call."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
import torch

from support import assert_same, jit
from treeplay.sandbox.signal_handlers import signal_handlers, was_raised_by_handler
from treeplay.trace.run.on_fakes import OnFakes

samples: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    samples.clear()
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGVTALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Late:
    def __call__(self, *_: object) -> None:
        raise TimeoutError("late")

    method = __call__


def late(*_: object) -> None:
    raise TimeoutError("late")


@torch.no_grad()
def late_and_decorated(*_: object) -> None:
    raise TimeoutError("late")


HANDLERS = [
    late,
    late_and_decorated,
    Late(),
    Late().method,
    functools.partial(late, 3),
    functools.partial(Late().method),
]


@pytest.mark.parametrize("handler", HANDLERS)
def test_what_a_handler_raises_is_told_from_the_rest(handler: Any) -> None:
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeoutError) as of_handler:
        signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(TimeoutError) as of_others:
        handler(signal.SIGUSR1, None)
    assert was_raised_by_handler(of_handler.value) and not was_raised_by_handler(of_others.value)


def test_handlers_run_apart_and_are_counted_if_they_raise() -> None:
    ran: list[bool] = []
    signal.signal(signal.SIGUSR1, late)
    signal.signal(signal.SIGVTALRM, lambda *_: ran.append(signal_handlers.is_running))
    before = signal_handlers.raised
    with signal_handlers.apart(), signal_handlers.apart():
        signal.raise_signal(signal.SIGVTALRM)
        assert signal_handlers.raised == before
        with pytest.raises(TimeoutError, match="late"):
            signal.raise_signal(signal.SIGUSR1)
    assert ran == [True] and not signal_handlers.is_running and signal_handlers.raised == before + 1
    assert signal.getsignal(signal.SIGUSR1) is late


@pytest.mark.parametrize("before", [late, signal.SIG_DFL, signal.SIG_IGN])
def test_after_the_block_signals_have_the_handlers_that_they_had(before: Any) -> None:
    signal.signal(signal.SIGUSR1, before)
    with signal_handlers.apart():
        signal.signal(signal.SIGUSR1, late_and_decorated)
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_handler_that_calls_the_one_in_front_leads_to_that_before() -> None:
    ran: list[str] = []
    signal.signal(signal.SIGUSR1, lambda *_: ran.append("first"))
    with signal_handlers.apart():
        found: Any = signal.getsignal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *given: (ran.append("second"), found(*given)))
    with signal_handlers.apart():
        signal.raise_signal(signal.SIGUSR1)
    assert ran == ["second", "first"]


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells whether a signal interrupts system calls")
def test_a_signal_that_does_not_interrupt_system_calls_still_does_not() -> None:
    reader, writer = os.pipe()
    read = ctypes.CDLL(None, use_errno=True).read
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.siginterrupt(signal.SIGUSR1, False)
    with signal_handlers.apart():
        pass
    main = threading.main_thread().ident
    assert main is not None
    thread = threading.Thread(
        target=lambda: (
            time.sleep(0.1),
            signal.pthread_kill(main, signal.SIGUSR1),
            time.sleep(0.1),
            os.write(writer, b"x"),
        )
    )
    thread.start()
    assert read(reader, ctypes.create_string_buffer(1), 1) == 1
    thread.join()
    os.close(reader)
    os.close(writer)


def test_handlers_that_raise_at_any_moment_leave_nothing_half_done() -> None:
    signal.signal(signal.SIGVTALRM, late)
    ended = 0
    for number in range(300):
        signal.setitimer(signal.ITIMER_VIRTUAL, 1e-6 * (1 + number % 60))
        try:
            for _ in range(400):
                with signal_handlers.apart():
                    pass
        except TimeoutError:
            ended += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        assert signal.getsignal(signal.SIGVTALRM) is late and not signal_handlers.is_apart
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert ended


def test_one_that_is_put_back_later_runs_the_handler() -> None:
    signal.signal(signal.SIGUSR1, late)
    with signal_handlers.apart():
        found = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.signal(signal.SIGUSR1, found)
    with pytest.raises(TimeoutError, match="late"):
        signal.raise_signal(signal.SIGUSR1)
    assert not signal_handlers.is_running


def test_another_thread_leaves_handlers_alone() -> None:
    signal.signal(signal.SIGUSR1, late)
    found: list[Any] = []

    def look() -> None:
        with signal_handlers.apart():
            found.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [late]


@pytest.fixture
def signal_in_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first operator of the next trace sends SIGUSR1."""
    run, sent = OnFakes.run, []

    def sending(self: OnFakes, *args: Any, **options: Any) -> Any:
        if not sent:
            sent.append(True)
            signal.raise_signal(signal.SIGUSR1)
        return run(self, *args, **options)

    monkeypatch.setattr(OnFakes, "run", sending)


@pytest.mark.usefixtures("signal_in_a_trace")
def test_what_a_program_does_instead_after_a_timeout_is_not_recorded(device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return (x - 3) * 2
        except TimeoutError:
            return x

    signal.signal(signal.SIGUSR1, late)
    jitted = jit(program)
    for number in range(5):
        x = torch.arange(4.0, device=device) - number
        assert_same(jitted(x), (x - 3) * 2)
    assert jitted.statistics().replays >= 2, jitted.explain()


@pytest.mark.usefixtures("signal_in_a_trace")
def test_what_a_program_raises_for_a_timeout_ends_the_call(device: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            return (x - 3) * 2
        except TimeoutError as error:
            raise KeyError("too late") from error

    signal.signal(signal.SIGUSR1, late)
    jitted, x = jit(program), torch.arange(4.0, device=device)
    jitted(x)
    with pytest.raises(KeyError, match="too late"):
        jitted(x)
    for _ in range(3):
        assert_same(jitted(x), (x - 3) * 2)
    assert jitted.statistics().replays >= 2, jitted.explain()


@pytest.mark.usefixtures("signal_in_a_trace")
def test_a_handler_may_end_the_process_from_a_trace() -> None:
    def leave(*_: object) -> None:
        raise SystemExit(3)

    signal.signal(signal.SIGUSR1, leave)
    jitted, x = jit(lambda x: (x - 3) * 2), torch.arange(4.0)
    jitted(x)
    with pytest.raises(SystemExit, match="3"):
        jitted(x)


class Scaled:
    """With a method that shares its decorator with a handler."""

    factor = 3.0

    @torch.no_grad()
    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor - 1


def test_what_runs_under_a_decorator_that_a_handler_has_too_is_guarded(device: str) -> None:
    signal.signal(signal.SIGUSR1, late_and_decorated)
    scaled, x = Scaled(), torch.arange(4.0, device=device)
    jitted = jit(scaled.step)
    for factor in (3.0, 3.0, 3.0, 5.0):
        scaled.factor = factor
        assert_same(jitted(x), x * factor - 1)


def test_a_handler_that_the_program_calls_itself_is_guarded(device: str) -> None:
    scale = {"factor": 3.0}

    def factor(*_: object) -> float:
        return scale["factor"]

    signal.signal(signal.SIGUSR1, factor)
    jitted, x = jit(lambda x: x * factor() - 1), torch.arange(4.0, device=device)
    for value in (3.0, 3.0, 3.0, 5.0):
        scale["factor"] = value
        assert_same(jitted(x), x * value - 1)


def test_a_timeout_ends_the_call_that_records_and_a_later_one_records(device: str) -> None:
    weight = torch.linspace(-1, 1, 8, device=device)

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2000):
            x = (x - 3) * weight
        return x

    jitted, x = jit(program), torch.arange(8.0, device=device)
    assert_same(jitted(x), program(x))
    signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.05)
    try:
        with pytest.raises(TimeoutError, match="late"):
            jitted(x)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    for _ in range(4):
        assert_same(jitted(x), program(x))
    assert jitted.statistics().replays >= 3, jitted.explain()


def test_a_program_is_recorded_under_a_profiler_that_takes_samples(device: str) -> None:
    weight = torch.linspace(-1, 1, 8, device=device)

    def sample(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            samples[frame.f_code.co_name] += 1
            frame = frame.f_back

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            x = (x - 3) * weight
        return x

    signal.signal(signal.SIGVTALRM, sample)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5e-4, 5e-4)
    try:
        jitted = jit(program)
        for number in range(6):
            x = torch.arange(8.0, device=device) - number
            assert torch.equal(jitted(x), program(x))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    assert samples and jitted.statistics().replays >= 4, jitted.explain()


def test_a_program_that_asks_for_a_handler_is_refused_at_its_line() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if signal.getsignal(signal.SIGUSR1) is late else x.cos()  # HERE

    jitted, x = jit(program, on_refusal="eager"), torch.ones(3)
    for handler, expected in ((late, x.sin()), (late, x.sin()), (late_and_decorated, x.cos())):
        signal.signal(signal.SIGUSR1, handler)
        assert_same(jitted(x), expected)
    assert "signal.getsignal" in jitted.explain() and "HERE" in jitted.explain()


@pytest.mark.parametrize("act", [signal.signal, signal.setitimer], ids=["handler", "timer"])
def test_a_program_that_sets_a_handler_or_a_timer_is_refused(act: Any) -> None:
    times: list[int] = []
    arguments = (signal.SIGUSR1, times.append) if act is signal.signal else (signal.ITIMER_VIRTUAL, 0)

    def program(x: torch.Tensor) -> torch.Tensor:
        act(*arguments)
        return x * 2

    jitted, x = jit(program, on_refusal="eager"), torch.ones(3)
    for _ in range(4):
        assert_same(jitted(x), x * 2)
    assert not jitted.statistics().replays and f"signal.{act.__name__}" in jitted.explain()

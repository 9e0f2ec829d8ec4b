"""Handlers of signals: what they do while a program is watched is none of the program's, and what they raise ends the call."""

from __future__ import annotations

import functools
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

from support import assert_same, jit
from treeplay.sandbox.signal_handlers import codes_of_handlers, was_raised_by_handler

samples: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    samples.clear()
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGVTALRM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Late:
    def __call__(self, *_: object) -> None: ...

    def method(self, *_: object) -> None: ...


def late(*_: object) -> None:
    raise TimeoutError("late")


@pytest.mark.parametrize(
    "handler, code",
    [
        (late, late.__code__),
        (Late(), Late.__call__.__code__),
        (Late().method, Late.method.__code__),
        (functools.partial(late, 3), late.__code__),
        (functools.partial(Late().method), Late.method.__code__),
    ],
)
def test_code_of_handlers_is_found(handler: Any, code: CodeType) -> None:
    assert code not in codes_of_handlers()
    signal.signal(signal.SIGUSR1, handler)
    assert code in codes_of_handlers()


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler])
def test_other_handlers_have_no_code(handler: Any) -> None:
    before = codes_of_handlers()
    signal.signal(signal.SIGUSR1, handler)
    assert codes_of_handlers() == before


def test_another_thread_runs_no_handlers() -> None:
    signal.signal(signal.SIGUSR1, late)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(codes_of_handlers()))
    thread.start()
    thread.join()
    assert found == [frozenset()]


def test_what_a_handler_raised_is_told_from_the_rest() -> None:
    signal.signal(signal.SIGUSR1, late)
    with pytest.raises(TimeoutError) as of_handler:
        signal.raise_signal(signal.SIGUSR1)
    with pytest.raises(TimeoutError) as of_others:
        raise TimeoutError("late")
    assert was_raised_by_handler(of_handler.value) and not was_raised_by_handler(of_others.value)


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


def test_a_program_finds_the_handlers_that_are_set() -> None:
    signal.signal(signal.SIGUSR1, late)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if signal.getsignal(signal.SIGUSR1) is late else x.cos()

    jitted, x = jit(program), torch.ones(3)
    for _ in range(4):
        assert_same(jitted(x), x.sin())

"""Handlers of signals: what they do while a program is watched is none of the program's, and they are put back."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import pytest
import torch

from support import jit
from treeplay.sandbox.signal_handlers import handled_apart

events: list[str] = []
samples: Counter[str] = Counter()


def pause() -> bool:
    events.append("pause")
    return True


def resume() -> None:
    events.append("resume")


def handler(number: int, _: FrameType | None) -> None:
    events.append(signal.Signals(number).name)


@pytest.fixture(autouse=True)
def handled() -> Iterator[None]:
    events.clear()
    samples.clear()
    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_a_handler_runs_in_a_pause() -> None:
    with handled_apart(pause, resume):
        signal.raise_signal(signal.SIGUSR1)
    assert events == ["pause", "SIGUSR1", "resume"]
    assert signal.getsignal(signal.SIGUSR1) is handler


def test_a_handler_that_raises_ends_the_pause() -> None:
    def raises(*_: object) -> None:
        raise KeyError

    signal.signal(signal.SIGUSR1, raises)
    with pytest.raises(KeyError), handled_apart(pause, resume):
        signal.raise_signal(signal.SIGUSR1)
    assert events == ["pause", "resume"]
    assert signal.getsignal(signal.SIGUSR1) is raises


def test_a_handler_that_is_set_within_stays() -> None:
    def other(*_: object) -> None: ...

    with handled_apart(pause, resume):
        signal.signal(signal.SIGUSR1, other)
    assert signal.getsignal(signal.SIGUSR1) is other


def test_another_thread_changes_no_handler() -> None:
    def block() -> None:
        with handled_apart(pause, resume):
            events.append("handler" if signal.getsignal(signal.SIGUSR1) is handler else "another")

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert events == ["handler"]


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

    before = signal.signal(signal.SIGVTALRM, sample)
    signal.setitimer(signal.ITIMER_VIRTUAL, 5e-4, 5e-4)
    try:
        jitted = jit(program)
        for number in range(6):
            x = torch.arange(8.0, device=device) - number
            assert torch.equal(jitted(x), program(x))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
    assert samples and jitted.statistics().replays >= 4, jitted.explain()

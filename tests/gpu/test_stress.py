"""Replays from four threads on four streams at once give what eager gives, with inputs freed right after each call.

thread 0 ─ streams 0, 1, 2, 3, 0, …  ┐    one inference program for all, with two recordings
thread 1 ─ streams 1, 2, 3, 0, 1, …  ├─▶
thread 2 ─ streams 2, 3, 0, 1, 2, …  │    a state of its own for each thread, carried from stream to stream
thread 3 ─ streams 3, 0, 1, 2, 3, …  ┘

All numbers are whole and small enough for float32 to be exact, so that results are equal bit for bit whatever kernels
compute them. Updates do not commute: one that is lost, doubled or late changes every later number.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import jit

pytestmark = pytest.mark.gpu

THREADS, STREAMS = 4, 4
WIDTH = 64
BATCHES = (1, 8)
CHUNK = 40  # calls between two looks at the results
LOWERINGS = pytest.mark.parametrize("lower", ["aten", "inductor"])


def whole_numbers(low: int, high: int, *shape: int, generator: torch.Generator | None = None) -> torch.Tensor:
    return torch.randint(low, high, shape, device="cuda", generator=generator).float()


class Net(torch.nn.Module):
    """Two layers with whole weights; results stay far below 2**24."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(whole_numbers(-1, 2, WIDTH, WIDTH), requires_grad=False)
        self.second = torch.nn.Parameter(whole_numbers(-1, 2, WIDTH, WIDTH), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.first) @ self.second - 2 * x


def make_update(state: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    def update(x: torch.Tensor) -> torch.Tensor:
        state.mul_(3).add_(x).remainder_(1021)
        return state * 2 - x

    return update


class Worker(threading.Thread):
    """One thread: alternates inference and updates over the streams until the time is up."""

    def __init__(self, number: int, net: Net, fast: Any, streams: list[torch.cuda.Stream], lower: str) -> None:
        super().__init__(daemon=True)
        self.number, self.net, self.fast, self.streams = number, net, fast, streams
        self.state, self.twin = torch.zeros(WIDTH, device="cuda"), torch.zeros(WIDTH, device="cuda")
        self.update, self.eager_update = jit(make_update(self.state), lower=lower), make_update(self.twin)
        # The default one is not to be had while others capture.
        self.draws = torch.Generator("cuda").manual_seed(number)
        self.end, self.calls, self.wrong = 0.0, 0, 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with torch.no_grad():
                while time.monotonic() < self.end:
                    self.chunk()
        except BaseException as error:
            self.error = error

    def chunk(self) -> None:
        """Some calls without waiting for the device, then a look at all their results."""
        found, before = [], None
        for index in range(CHUNK):
            stream = self.streams[(self.number + index) % STREAMS]
            with torch.cuda.stream(stream):
                if before is not None:
                    stream.wait_event(before)
                found.append(self.infer(BATCHES[index // STREAMS % 2]))
                found.append(self.change())
                before = stream.record_event()
        torch.cuda.synchronize()
        self.calls += 2 * CHUNK
        self.wrong += sum(int((a != b).sum()) for a, b in found)

    def infer(self, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = whole_numbers(0, 4, batch, WIDTH, generator=self.draws)
        expected = self.net(x)
        found = self.fast(x)
        del x
        spoil(batch, WIDTH)
        return found, expected

    def change(self) -> tuple[torch.Tensor, torch.Tensor]:
        x = whole_numbers(0, 1000, WIDTH, generator=self.draws)
        expected = self.eager_update(x)
        found = self.update(x)
        del x
        spoil(WIDTH)
        return found, expected


def spoil(*shape: int) -> None:
    """Write into memory that was just freed: whoever reads it late reads NaN."""
    torch.full(shape, float("nan"), device="cuda")


def race(lower: str, seconds: float, *, warm: bool) -> list[Worker]:
    """All threads for some seconds; with `warm` everything is recorded before they start, else by them."""
    net = Net()
    fast = jit(net, lower=lower)
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    workers = [Worker(number, net, fast, streams, lower) for number in range(THREADS)]
    torch.cuda.synchronize()
    if warm:
        with torch.no_grad():
            for worker in workers:
                worker.chunk()
    for worker in workers:
        worker.end = time.monotonic() + seconds
        worker.start()
    for worker in workers:
        worker.join(timeout=seconds + 120)
        assert not worker.is_alive(), f"thread {worker.number} hangs"
    facts = fast.statistics()
    assert facts.refusals == 0, fast.explain()
    assert facts.recordings == len(BATCHES)
    return workers


def assert_all_right(workers: list[Worker]) -> None:
    for worker in workers:
        if worker.error is not None:
            raise worker.error
        assert worker.wrong == 0, f"thread {worker.number}: {worker.wrong} wrong elements in {worker.calls} calls"
        assert torch.equal(worker.state, worker.twin)
        assert worker.update.statistics().replays > worker.calls / 4


@LOWERINGS
def test_recorded_programs_are_right_from_all_threads_and_streams(lower: str) -> None:
    assert_all_right(race(lower, 3.0, warm=True))


@LOWERINGS
def test_threads_that_record_while_others_replay_are_right(lower: str) -> None:
    assert_all_right(race(lower, 3.0, warm=False))


@pytest.mark.soak
@pytest.mark.timeout(300)
@LOWERINGS
def test_a_minute_of_threads_and_streams_is_right(lower: str, request: pytest.FixtureRequest) -> None:
    if "soak" not in request.config.getoption("-m"):
        pytest.skip("runs with -m soak")
    assert_all_right(race(lower, 30.0, warm=True))
    assert_all_right(race(lower, 30.0, warm=False))

"""A million replays from four threads while recordings are made and dropped: right to the last bit, and memory stays flat.

threads 0..3   one inference program for all, a state of their own each; inputs move, each result is looked at in sums
thread 4       new programs, recorded, replayed and dropped, and recordings that are let go to make room

All numbers are whole and small enough for float32 to be exact. Updates do not commute.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from support import jit

pytestmark = pytest.mark.gpu

THREADS, WIDTH, INPUTS, CHUNK = 4, 64, 8, 500
REPLAYS = 1_000_000
MOST_SECONDS = 400
MOST_GROWTH = 32 << 20


def host_bytes() -> int:
    """What this process holds of the host's memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def make_update(state: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    def update(x: torch.Tensor) -> torch.Tensor:
        state.mul_(3).add_(x).remainder_(1021)
        return state - 2 * x

    return update


class Worker(threading.Thread):
    """Alternates inference and updates; what they give is summed on the device and compared when a chunk is over."""

    def __init__(self, number: int, infer: Any, reference: Callable[..., torch.Tensor], replays: int) -> None:
        super().__init__(daemon=True)
        self.infer, self.left, self.number = infer, replays, number
        device = "cuda"
        self.inputs = [torch.full((WIDTH,), float(at + number), device=device) for at in range(INPUTS)]
        self.expected = [reference(x) for x in self.inputs]
        self.state, self.twin = torch.zeros(WIDTH, device=device), 0  # all elements of the state are one number
        self.update = jit(make_update(self.state))
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)
        self.error: BaseException | None = None
        self.may_go = threading.Event()

    def run(self) -> None:
        try:
            self.may_go.wait()
            while self.left > 0:
                self.chunk(min(CHUNK, self.left))
        except BaseException as error:
            self.error = error

    def chunk(self, count: int) -> None:
        given = self.inputs
        for call in range(0, count, 2):
            at = call // 2 % INPUTS
            self.twin = (3 * self.twin + at + self.number) % 1021
            out = self.infer(given[at])
            changed = self.update(given[at])
            if call % 50 == 0:  # of both, kept and right although many replays followed
                self.wrong += (out != self.expected[at]).sum()
                self.wrong += (changed != self.state - 2 * given[at]).sum()
        self.wrong += (self.state != self.twin).sum()
        torch.cuda.current_stream().synchronize()
        self.left -= count


class Maker(threading.Thread):
    """Makes recordings and drops them until it is told to stop."""

    def __init__(self, pause: float) -> None:
        super().__init__(daemon=True)
        self.made, self.wrong, self.pause = 0, 0, pause
        self.is_over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                self.once()
                self.is_over.wait(self.pause)
        except BaseException as error:
            self.error = error

    def once(self) -> None:
        factor = float(self.made % 7 + 2)
        weight = torch.full((WIDTH,), factor, device="cuda")
        program = jit(lambda x: x * weight - factor)
        for call in range(6):
            x = torch.full((WIDTH,), float(call), device="cuda")
            self.wrong += int((program(x) != x * factor - factor).sum())
        made = program.statistics()
        assert made.recordings == 1, program.explain()
        assert made.keys[0].recordings[0].launch.stage == "recorded", program.explain()
        program.reset()
        self.made += 1


def endure(replays: int, seconds: float, *, pause: float, least_made: int) -> None:
    """Four threads with `replays` calls in all, and one that makes recordings, with pauses; it makes some at least."""
    weight = torch.randint(-2, 3, (WIDTH,), device="cuda").float()

    def reference(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * weight) - 2 * x

    infer = jit(reference)
    workers = [Worker(number, infer, reference, replays // THREADS) for number in range(THREADS)]
    maker = Maker(pause)
    for worker in workers:
        worker.chunk(40)  # recorded by this thread; the others have never called CUDA
        worker.left += 40
        worker.start()
    maker.once()
    maker.start()
    torch.cuda.synchronize()
    before: tuple[int, int, int] | None = None
    end = time.monotonic() + seconds
    for worker in workers:
        worker.may_go.set()
    total = replays // THREADS * THREADS
    while any(worker.is_alive() for worker in workers):
        assert time.monotonic() < end, f"{sum(worker.left for worker in workers)} replays are left"
        time.sleep(0.2)
        if before is None and sum(worker.left for worker in workers) < total * 0.9:  # all is warm by now
            before = memory()
    after = memory()
    maker.is_over.set()
    maker.join(timeout=60)
    assert not maker.is_alive()
    for one in (*workers, maker):
        if one.error is not None:
            raise one.error
    assert [int(worker.wrong) for worker in workers] == [0] * THREADS and maker.wrong == 0
    assert_recorded(infer, [worker.update for worker in workers], replays)
    assert maker.made >= least_made
    if before is not None:
        growth = [now - then for now, then in zip(after, before, strict=True)]
        assert all(grown < MOST_GROWTH for grown in growth), f"allocated, reserved, host: grew by {growth}"


def assert_recorded(infer: Any, updates: list[Any], replays: int) -> None:
    found = [infer.statistics(), *(update.statistics() for update in updates)]
    for program in found:
        assert program.refusals == 0 and program.recordings >= 1
        assert program.keys[0].recordings[-1].launch.stage == "recorded"
    assert sum(program.replays for program in found) > 0.99 * replays


def memory() -> tuple[int, int, int]:
    gc.collect()
    return torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), host_bytes()


def test_some_thousand_replays_while_recordings_are_made_and_dropped() -> None:
    endure(20_000, 60, pause=0.05, least_made=2)


@pytest.mark.soak
@pytest.mark.timeout(480)
def test_a_million_replays_from_four_threads_are_right_and_memory_is_flat(request: pytest.FixtureRequest) -> None:
    if "soak" not in request.config.getoption("-m"):
        pytest.skip("runs with -m soak")
    endure(REPLAYS, MOST_SECONDS, pause=0.5, least_made=10)

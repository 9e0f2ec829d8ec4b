"""A call finds its recording by key: how many others there are makes no difference.

Nothing is audited here: when an audit is due depends on how long ago the recordings were made, and it may come into one count
of calls and not into the other.
"""

from __future__ import annotations

import gc
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit
from support.compiled import compiled, new_reports
from support.recordings import on_a_tape

BESIDE = 100
ROUNDS, CALLS = 40, 40
COUNTS, TRIES = 4, 10
Calls = Callable[[], None]


@pytest.fixture(autouse=True)
def no_audits() -> Iterator[None]:
    with treeplay.settings.changed(audit=False):
        yield


def program(x: torch.Tensor, mode: str = "") -> torch.Tensor:
    return (x * 2).tanh() - x


def with_recordings(count: int, device: str) -> Any:
    """A program with a recording for each of `count` + 1 kinds of calls."""
    jitted = jit(program)
    x = torch.linspace(-1, 1, 4, device=device)
    with treeplay.settings.changed(compile_budget=math.inf, max_recordings_per_program=BESIDE + 20):
        for number in range(count + 1):
            for _ in range(2 if device == "cpu" else 3):
                assert_same(jitted(x, f"mode {number}"), program(x))
    found = jitted.statistics()
    stages = {recording.launch.stage for key in found.keys for recording in key.recordings}
    assert found.recordings == count + 1 and stages == {"bound" if device == "cpu" else "recorded"}
    return jitted


def alternating(jitted: Any, device: str) -> Calls:
    """Calls of two kinds in turn, so that the last recording never serves."""
    x = torch.linspace(-1, 1, 4, device=device)

    def calls() -> None:
        for _ in range(CALLS // 2):
            jitted(x, "mode 0")
            jitted(x, "mode 1")

    return calls


def like_the_last(jitted: Any, device: str) -> Calls:
    x = torch.linspace(-1, 1, 4, device=device)

    def calls() -> None:
        for _ in range(CALLS):
            jitted(x, "mode 0")

    return calls


def by_a_new_key(jitted: Any, device: str) -> Calls:
    """Calls of two kinds in turn, whose keys are made: nothing is known of what their arguments look like."""
    x, glances = torch.linspace(-1, 1, 4, device=device), jitted._manager.cache.glances

    def calls() -> None:
        for _ in range(CALLS // 2):
            glances.clear()
            jitted(x, "mode 0")
            glances.clear()
            jitted(x, "mode 1")

    return calls


def fewest_events(calls: Calls) -> Counter[str]:
    """Which functions are called meanwhile, Python's and C's. What else happens in this thread adds some and takes none."""
    return min((events(calls) for _ in range(COUNTS)), key=Counter.total)


def events(calls: Calls) -> Counter[str]:
    counted: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call"):
            counted[getattr(argument, "__qualname__", frame.f_code.co_qualname)] += 1

    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        calls()
    finally:
        sys.setprofile(None)
        gc.enable()
    return counted


def best_seconds(*several: Calls) -> list[float]:
    """The shortest of many rounds of each, in turn: what else the machine does makes a round longer, never shorter."""
    best = [math.inf] * len(several)
    gc.collect()
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for at, calls in enumerate(several):
                start = perf_counter()
                calls()
                best[at] = min(best[at], perf_counter() - start)
    finally:
        gc.enable()
    return best


def check_costs(few: Calls, many: Calls) -> None:
    for calls in (few, many):
        for _ in range(COUNTS):
            calls()  # what comes once
    one, hundred = fewest_events(few), fewest_events(many)
    assert hundred.total() <= 1.02 * one.total(), (hundred - one, one - hundred)
    ratios = []
    for _ in range(TRIES):  # what disturbs one measurement is over in a later one; what is slower is so in all
        shortest, beside_others = best_seconds(few, many)
        ratios.append(beside_others / shortest)
        if ratios[-1] <= 1.1:
            return
    pytest.fail(f"a call with {BESIDE} recordings beside it takes {ratios} × as long as one with 1")


def sized(x: torch.Tensor) -> torch.Tensor:
    return (x * x.shape[0]).tanh() - x


def sized_too(x: torch.Tensor) -> torch.Tensor:
    """Of its own code, under which Dynamo keeps what it compiles."""
    return (x * x.shape[0]).tanh() - x


def test_Tplus16_a_call_with_a_hundred_recordings_beside_it_costs_what_one_with_one_costs(device: str) -> None:
    few, many = with_recordings(1, device), with_recordings(BESIDE, device)
    for kind in (like_the_last, alternating, by_a_new_key):
        replays = many.statistics().replays
        check_costs(kind(few, device), kind(many, device))
        assert many.statistics().replays - replays >= CALLS * ROUNDS
    assert many.statistics().recordings == BESIDE + 1


def test_Tplus16_so_does_a_call_of_a_compiled_function(
    device: str, monkeypatch: pytest.MonkeyPatch, fresh_dynamo: None
) -> None:
    on_a_tape(device, monkeypatch)
    made = []
    for count, body in ((1, sized), (BESIDE, sized_too)):
        run = compiled(body, dynamic=True, most_sizes=BESIDE + 1)
        with treeplay.settings.changed(compile_budget=math.inf, max_recordings_per_program=BESIDE + 1):
            for rows in range(3, 4 + count):
                for _ in range(3):
                    x = torch.linspace(-1, 1, rows, device=device)
                    assert_same(run(x), (x * rows).tanh() - x)
        made.append(run)
    inputs = [torch.linspace(-1, 1, rows, device=device) for rows in (3, 4)]

    def calls_of(run: Any) -> Calls:
        def calls() -> None:
            for _ in range(CALLS // 2):
                for x in inputs:
                    run(x)

        return calls

    launches = [report.launch for report in new_reports() if report.launch is not None]
    assert len(launches) == BESIDE + 3 and {launch.stage for launch in launches} == {"recorded"}
    check_costs(*map(calls_of, made))

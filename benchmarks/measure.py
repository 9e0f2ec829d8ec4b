"""Measure one program in this process: `python -m benchmarks.measure NAME --out FILE.json`.

check results ─▶ rounds: eager, compile, compile+opt, treeplay, one after the other, many times ─▶ own share ─▶ memory

Within a round all variants meet the same state of the machine, so ratios are taken round by round. A time is the median
over rounds; a spread is the middle half of them.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
from collections.abc import Callable, Sequence
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from benchmarks import machine
from benchmarks.programs import Batch, Program, find_program
from benchmarks.variants import Run, make_batches, variants_of
from treeplay.observe import same

CHECKED_CALLS = 5
TOLERANCE = 1e-4
_BATCHES = 4
_WARM_UP_CALLS = 20
_BLOCK_SECONDS = 0.004
_FEWEST_ROUNDS = 10
_MOST_CALLS_PER_BLOCK = 200
_SHARE_CALLS = 500


class WrongResultError(RuntimeError):
    """A variant does not compute what eager computes: its time means nothing."""


def measure(program: Program, *, seconds: float, memory_calls: int) -> dict[str, Any]:
    """All about one program but its cold start, as plain values."""
    with torch.no_grad() if not program.is_training else contextlib.nullcontext():
        runs = {name: make(program) for name, make in variants_of(program).items()}
        check(program, runs)
        batches = make_batches(program, _BATCHES)
        rounds = time_rounds(runs, batches, seconds=seconds)
        return {
            "program": program.name,
            "title": program.title,
            "environment": machine.facts(),
            "lowering": lowering_of(runs["treeplay"]),
            "rounds": len(rounds),
            "us": {name: quartiles([times[name] * 1e6 for times in rounds]) for name in runs},
            **compare(rounds),
            "own_share_us": own_share_us(runs["treeplay"], batches),
            "memory": growth(runs["treeplay"], batches, memory_calls),
        }


def check(program: Program, runs: dict[str, Run]) -> None:
    """Raise `WrongResultError` unless all variants give eager's results on the first calls."""
    batches = make_batches(program, CHECKED_CALLS)
    results = {name: [run(*batch).detach().clone() for batch in batches] for name, run in runs.items()}
    for name, found in results.items():
        verdict = same(results["eager"], found, tol=TOLERANCE, on_message=lambda _: None)
        if not verdict:
            raise WrongResultError(f"{program.name}, {name}: {verdict}")


def time_rounds(runs: dict[str, Run], batches: list[Batch], *, seconds: float) -> list[dict[str, float]]:
    """Seconds per call of each variant, round by round, for about `seconds` in all."""
    for run in runs.values():
        _block(run, batches, _WARM_UP_CALLS)
    slowest = max(_block(run, batches, _WARM_UP_CALLS) for run in runs.values())
    calls = max(1, min(_MOST_CALLS_PER_BLOCK, round(_BLOCK_SECONDS / slowest)))
    rounds: list[dict[str, float]] = []
    names, end = list(runs), perf_counter() + seconds
    gc.collect()
    while len(rounds) < _FEWEST_ROUNDS or perf_counter() < end:
        first = len(rounds) % len(names)  # nobody always comes after the same neighbour
        order = names[first:] + names[:first]
        rounds.append({name: _block(runs[name], batches, calls) for name in order})
    return rounds


def _block(run: Run, batches: list[Batch], calls: int) -> float:
    """Seconds per call over `calls` calls."""
    chosen = list(islice(cycle(batches), calls))
    start = perf_counter()
    for batch in chosen:
        run(*batch)
    return (perf_counter() - start) / calls


def compare(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """The best peer by its median, and how many times faster treeplay is, taken round by round."""
    peers = [name for name in rounds[0] if name != "treeplay"]
    best = min(peers, key=lambda name: statistics.median(times[name] for times in rounds))
    return {"best_peer": best, "speedup": quartiles([times[best] / times["treeplay"] for times in rounds])}


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """The median, and the values below which a quarter and three quarters lie."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "low": low, "high": high}


def recording_of(run: Any) -> Any:
    """The newest recording of a jitted program or module."""
    jitted = getattr(run, "_treeplay", run)
    return [recording for entry in jitted._manager.cache.table for recording in entry.recordings][-1]


def lowering_of(run: Any) -> str:
    """What the recording was lowered by, and why."""
    recording = recording_of(run)
    return f"{recording.lowering} ({recording.plan})"


def own_share_us(run: Run, batches: list[Batch]) -> dict[str, float]:
    """Microseconds of a warm call that are not spent in what was recorded: finding it, checking, handing over results."""
    watch = _Stopwatch()
    shares = []
    with watch.around(recording_of(run)):
        for batch in islice(cycle(batches), _SHARE_CALLS):
            start = perf_counter()
            run(*batch)
            shares.append((perf_counter() - start - watch.seconds) * 1e6)
    return quartiles(shares)


class _Stopwatch:
    """Times the innermost callable of a recording, from inside of its own calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def around(self, recording: Any) -> Any:
        """Time the compiled artifact where there is one, else the recorded callable itself."""
        scope = recording.call.__globals__
        run = scope["run"]
        cells = dict(zip(run.__code__.co_freevars, run.__closure__ or (), strict=True)) if _is_function(run) else {}
        cell = cells.get("artifact")
        inner = cell.cell_contents if cell is not None else run
        try:
            if cell is not None:
                cell.cell_contents = self._timed(inner)
            else:
                scope["run"] = self._timed(inner)
            yield
        finally:
            scope["run"] = run
            if cell is not None:
                cell.cell_contents = inner

    def _timed(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = perf_counter()
            out = inner(*args)
            self.seconds = perf_counter() - start
            return out

        return timed


def _is_function(value: Any) -> bool:
    return hasattr(value, "__code__") and hasattr(value, "__closure__")


def growth(run: Run, batches: list[Batch], calls: int) -> dict[str, int]:
    """By how many bytes this process grows over `calls` warm calls."""
    _block(run, batches, calls // 10)
    gc.collect()
    before = machine.resident_bytes()
    for batch in islice(cycle(batches), calls):
        run(*batch)
    gc.collect()
    return {"calls": calls, "grown_bytes": machine.resident_bytes() - before}


def main() -> None:
    """Measure one program and write its dict."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure", description=measure.__doc__)
    parser.add_argument("program")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--memory-calls", type=int, default=2000)
    words = parser.parse_args()
    found = measure(find_program(words.program), seconds=words.seconds, memory_calls=words.memory_calls)
    words.out.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()

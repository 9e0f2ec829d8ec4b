"""Random worlds that change between calls: `python -m benchmarks.worlds --runs 50000 --seed 0`.

In each run a random program over random objects is jitted; between its calls the objects change, and each call is compared
with an eager twin, its result and all that it stores. A difference is stale. The first stale world is printed, made as small as
it gets. The result lies in benchmarks/results/worlds; the exit status is 1 if anything was stale.

`--front compile` runs them through `torch.compile(backend="treeplay")` instead. Guards are Dynamo's there, and what is stale
with `backend="eager"` too is counted apart.

The file is written as it goes, so that a run that is stopped has told what it knows.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "worlds"
_BLOCK = 50
_BLOCKS_OF_A_PROCESS = 40  # so that what torch keeps of a program cannot pile up
_COUNTS = ("calls", "replays", "recordings", "misses", "refusals", "raised", "changes")
_MOST_KEPT = 100
"""So many stale worlds are told by seed and difference."""


def find_support() -> None:
    """Let the tests' support be imported."""
    sys.path.insert(0, str(machine.ROOT / "tests"))


def judged(first: int, end: int, front: str) -> tuple[Counter[str], Counter[str], list[tuple[int, str]]]:
    """Counts over the runs of a block, its refusals by operation, and its stale worlds."""
    import torch

    from support.worlds import run_world

    torch.set_num_threads(1)
    logging.disable()
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    stale = []
    for seed in range(first, end):
        outcome = run_world(seed, front)
        counts.update({name: getattr(outcome, name) for name in _COUNTS}, runs=1)
        counts["never recorded"] += outcome.recordings == 0
        if outcome.refusal is not None:
            refused[outcome.refusal.partition(":")[0]] += 1
        if outcome.is_dynamos:
            counts["stale with backend eager too"] += 1
        elif outcome.stale is not None:
            stale.append((seed, outcome.stale))
    return counts, refused, stale


@dataclass
class Tally:
    """How the runs came out so far."""

    seed: int
    front: str = "jit"
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    stale: list[tuple[int, str]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, counts: Counter[str], refused: Counter[str], stale: list[tuple[int, str]]) -> None:
        """Join what is known about a block."""
        self.counts += counts
        self.refused += refused
        self.stale = sorted([*self.stale, *stale])

    def line(self, runs: int) -> str:
        """Where it stands."""
        done, speed = self.counts["runs"], self.counts["runs"] / max(self.seconds, 1e-9)
        return f"{done:,} of {runs:,} runs, {self.counts['replays']:,} replays, {len(self.stale)} stale, {speed:.1f} runs/s"

    def told(self) -> dict[str, Any]:
        """All of it, as it stands in the file."""
        return {
            "environment": machine.facts(),
            "seed": self.seed,
            "front": self.front,
            **{
                name: self.counts[name] for name in ("runs", *_COUNTS, "never recorded", "stale with backend eager too")
            },
            "refused by operation": dict(self.refused.most_common(30)),
            "stale": len(self.stale),
            "stale worlds": [{"seed": seed, "difference": what[:500]} for seed, what in self.stale[:_MOST_KEPT]],
            "seconds": round(self.seconds),
            "runs per second": round(self.counts["runs"] / max(self.seconds, 1e-9), 1),
        }


def sweep(tally: Tally, runs: int, out: Path, *, workers: int, seconds: float) -> None:
    """Run block by block until all are done or the time is up; the file is there from the first block on."""
    start, last = monotonic(), 0.0
    ends = tally.seed + runs
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, fresh, find_support, max_tasks_per_child=_BLOCKS_OF_A_PROCESS) as pool:
        blocks: list[Future[Any]] = [
            pool.submit(judged, first, min(first + _BLOCK, ends), tally.front)
            for first in range(tally.seed, ends, _BLOCK)
        ]
        for block in as_completed(blocks):
            if block.cancelled():
                continue
            found = block.result()
            tally.add(*found)
            for seed, what in found[2]:
                print(f"stale: {seed}: {what}", file=sys.stderr, flush=True)
            tally.seconds = monotonic() - start
            if tally.seconds - last > 5:
                last = tally.seconds
                print(tally.line(runs), file=sys.stderr, flush=True)
                machine.write_whole(tally.told(), out)
            if tally.seconds > seconds:
                for other in blocks:
                    other.cancel()


def show_first(tally: Tally) -> None:
    """The first stale world, as small as it gets."""
    from support.worlds import make_world, run, shrink

    if tally.stale:
        world = shrink(make_world(tally.stale[0][0]), tally.front)
        print(f"{world}\n\n{run(world, tally.front).stale}\n\nthe whole of it: support.worlds.make_world({world.seed})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Random worlds that change between calls.")
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0, help="the first; the others follow it")
    parser.add_argument("--front", choices=("jit", "compile"), default="jit")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    find_support()
    tally = Tally(chosen.seed, chosen.front)
    day = str(machine.facts()["date"])[:10]
    out = chosen.out or RESULTS / f"worlds-{chosen.front}-cpu-{day}.json"
    sweep(tally, chosen.runs, out, workers=chosen.workers, seconds=chosen.seconds)
    machine.write_whole(tally.told(), out)
    print(tally.line(chosen.runs))
    show_first(tally)
    sys.exit(1 if tally.stale else 0)


if __name__ == "__main__":
    main()

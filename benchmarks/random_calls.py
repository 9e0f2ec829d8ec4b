"""Random programs of calls beside eager: `python -m benchmarks.random_calls --programs 10000`.

Each program (`tests/support/random_calls.py`) is up to 30 calls of random functions over one world, with backwards, changes of
the world, failures, threads and dropped recordings in between; after each, results, exceptions and the world are eager's. The
result lies in benchmarks/results/random_calls; the exit status is 1 if a program was wrong. Blocks of programs run in processes
of their own, and the file is written as it goes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import warnings
from collections import Counter
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "random_calls"
_BLOCK = 50
_BLOCKS_OF_A_PROCESS = 10  # so that what torch keeps of a program cannot pile up
_MOST_TOLD = 20


def judged(block: tuple[int, int, str, float]) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Counts over the programs of a block, and those that were wrong."""
    first, end, device, stop = block
    sys.path.insert(0, str(machine.ROOT / "tests"))
    import math

    import torch

    import treeplay
    from support.random_calls import check_program

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    wrong = []
    with treeplay.settings.changed(compile_budget=math.inf, tiers="exact"):
        for seed in range(first, end):
            if monotonic() > stop:
                break
            try:
                counts += check_program(seed, device)
            except Exception as error:
                wrong.append({"seed": seed, "told": f"{type(error).__name__}: {error}"[:2000]})
            counts["programs"] += 1
    return counts, wrong


def sweep(chosen: argparse.Namespace, out: Path) -> list[dict[str, Any]]:
    """Run block by block until all are done or the time is up; the programs that were wrong."""
    start, ends = monotonic(), chosen.seed + chosen.programs
    counts: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    blocks = [
        (first, min(first + _BLOCK, ends), chosen.device, start + chosen.seconds)
        for first in range(chosen.seed, ends, _BLOCK)
    ]
    with context.Pool(chosen.workers, maxtasksperchild=_BLOCKS_OF_A_PROCESS) as pool:
        for more, also_wrong in pool.imap_unordered(judged, blocks):
            counts += more
            wrong += also_wrong
            told = {
                "machine": machine.facts() | {"device": chosen.device},
                "first seed": chosen.seed,
                "seconds": round(monotonic() - start, 1),
                "counts": dict(sorted(counts.items())),
                "wrong": len(wrong),
                "wrong programs": sorted(wrong, key=lambda one: one["seed"])[:_MOST_TOLD],
            }
            machine.write_whole(told, out)
            print(f"{counts['programs']} programs, {counts['call']} calls, {len(wrong)} wrong", file=sys.stderr)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description="Random programs of calls beside eager.")
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="the first; the others follow it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0**9)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    day = str(machine.facts()["date"])[:10]
    wrong = sweep(chosen, chosen.out or RESULTS / f"random-calls-{chosen.device}-{day}.json")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

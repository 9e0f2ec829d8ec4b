"""What a warm call takes around what was recorded, here and in an older tree: `python -m benchmarks.warm_call --before FOLDER`.

Each program runs in a process of its own, in this tree and in the other in turn, a few times; the file has the medians. Both
trees are measured by this file, so that a difference is one of `src/`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch

from benchmarks.machine import ROOT, facts
from benchmarks.measure import own_share_us, quartiles, recording_of
from benchmarks.programs import find_program
from benchmarks.variants import make_batches, make_treeplay

PROGRAMS = ("mlp64-inference", "mlp64-sgd", "mlp64-adamw", "mlp256-sgd", "transformer-adamw")
_WARM_UP_CALLS = 400
_SECONDS_IN_BACKGROUND = 1.0  # for what is compiled there
_CALLS = 600
_BLOCKS, _CHECKS = 200, 50


def measure_one(name: str) -> dict[str, float]:
    """The median call of a program in this process, its own share of it, and what the check of its guards takes, in µs."""
    program = find_program(name)
    torch.set_num_threads(1)
    with torch.set_grad_enabled(program.is_training):
        run, batches = make_treeplay(program), make_batches(program, 4)
        for calls in (_WARM_UP_CALLS, _WARM_UP_CALLS // 4):
            for batch in islice(cycle(batches), calls):
                run(*batch)
            sleep(_SECONDS_IN_BACKGROUND)
        times = []
        for batch in islice(cycle(batches), _CALLS):
            start = perf_counter()
            run(*batch)
            times.append((perf_counter() - start) * 1e6)
        share = own_share_us(run, batches)["median"]
        holds, checks = recording_of(run).signature.guarded.holds, []
        for _ in range(_BLOCKS):
            start = perf_counter()
            for _ in range(_CHECKS):
                holds()
            checks.append((perf_counter() - start) / _CHECKS * 1e6)
    return {"call": quartiles(times)["median"], "own share": share, "check of guards": quartiles(checks)["median"]}


def run_one(name: str, tree: Path) -> dict[str, float]:
    """The same in a process that imports treeplay from a tree."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-W", "ignore", "-m", "benchmarks.warm_call", "--one", name]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(name: str, trees: dict[str, Path], turns: int) -> dict[str, dict[str, float]]:
    """The medians for each tree, which take turns."""
    found: dict[str, list[dict[str, float]]] = {which: [] for which in trees}
    for _ in range(turns):
        for which, tree in trees.items():
            found[which].append(run_one(name, tree))
    return {
        which: {what: round(statistics.median(one[what] for one in every), 2) for what in every[0]}
        for which, every in found.items()
    }


def main() -> None:
    """Measure, and write or print the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warm_call", description=__doc__)
    parser.add_argument("--one", choices=PROGRAMS, help="measure this program, here and now")
    parser.add_argument("--before", type=Path, help="a folder with an older tree")
    parser.add_argument("--commit", default="", help="which commit that is")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=PROGRAMS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path)
    words = parser.parse_args()
    if words.one:
        print(json.dumps(measure_one(words.one)))
        return
    trees = {"before": words.before.resolve(), "after": ROOT} if words.before else {"after": ROOT}
    told: dict[str, Any] = {
        "what": f"a warm call on one thread; medians of {words.turns} processes for each tree, in turn",
        "environment": facts(),
        "before": words.commit,
        "us": {name: compare(name, trees, words.turns) for name in words.programs},
    }
    text = json.dumps(told, indent=2) + "\n"
    if words.out:
        words.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()

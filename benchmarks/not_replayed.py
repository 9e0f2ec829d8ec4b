"""What calls cost that cannot be replayed, beside eager: `python -m benchmarks.not_replayed --out FILE`.

Each program is called in rounds, eager and jitted in turn; the first rounds, in which treeplay gets to know it, are told apart.
`--before FOLDER` measures another checkout of treeplay in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "not_replayed"
ROUNDS, CALLS, FIRST = 15, 1000, 3


def programs() -> dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]]:
    """Programs by name, each with what makes the arguments of its n-th call."""
    import torch

    class Batch:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

    x = torch.ones(64)
    sizes = [torch.ones(size) for size in range(2, 42)]
    return {
        "refused: the program reads a tensor on the host": (lambda x: x * x.sum().item() + 1, lambda _: (x,)),
        "a number that is another one in each call": (lambda x, n: x * n + 1, lambda n: (x, n)),
        "an object that is made for each call": (lambda b: b.x * 2 + 1, lambda _: (Batch(x),)),
        "40 sizes in turn": (lambda x: (x * 2 + 1).relu(), lambda n: (sizes[n % 40],)),
    }


def measure() -> dict[str, dict[str, float]]:
    """Microseconds per call: eager, jitted, and jitted in the first rounds."""
    import torch

    import treeplay

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {}
    for name, (program, arguments) in programs().items():
        jitted = treeplay.jit(program, lower="aten", on_refusal="eager")
        times: dict[Callable[..., Any], list[float]] = {program: [], jitted: []}
        for number in range(ROUNDS):
            calls = [arguments(number * CALLS + at) for at in range(CALLS)]
            for call, rounds in times.items():
                start = perf_counter()
                for args in calls:
                    call(*args)
                rounds.append((perf_counter() - start) / CALLS * 1e6)
        found[name] = {
            "eager": round(median(times[program]), 2),
            "jit": round(median(times[jitted][FIRST:]), 2),
            "jit, first calls": round(median(times[jitted][:FIRST]), 2),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What calls cost that cannot be replayed, beside eager.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--before", type=Path, help="another checkout, whose src is measured too")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        print(json.dumps(measure()))
        return
    folders = {"now": machine.ROOT, **({"before": chosen.before.resolve()} if chosen.before else {})}
    result: dict[str, Any] = {"environment": machine.facts(), "unit": "us per call, median of rounds"}
    for name, folder in folders.items():
        path = os.pathsep.join([str(folder / "src"), str(machine.ROOT)])
        command = [sys.executable, "-m", "benchmarks.not_replayed", "--work"]
        told = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True)
        result[name] = json.loads(told.stdout)
    out = chosen.out or RESULTS / f"cpu-{str(result['environment']['date'])[:10]}.json"
    machine.write_whole(result, out)
    print(json.dumps({name: result[name] for name in folders}, indent=1))


if __name__ == "__main__":
    main()

"""Random programs of writes, permutations, no-ops and aliases against eager: `python -m benchmarks.writes --runs 20000`.

Each program (`tests/support/writes.py`) is called a few times, its state and its arguments come to lie elsewhere in between,
and everything it may have changed is compared with an eager twin: bit for bit with `--front aten`, to rounding with `inductor`
and `compile` (`torch.compile`; `compile:aten` with `inner="aten"`). `--front mixed` takes the first three in turn. What
`torch.compile(backend="eager")` gives in just the same way is Dynamo's own, and counted apart. The result lies in
benchmarks/results/writes; the exit status is 1 if anything else differed or crashed.

Each block of programs runs in a process of its own, which tells of every program as it is done: a crash is one of the results.
The file is written as it goes, so that a run that is stopped has told what it knows.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import apart, machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "writes"
FRONTS = ("aten", "inductor", "compile")
_COUNTS = ("calls", "replays", "recordings", "refusals")
_MOST_KEPT = 200
"""So many differences are told by seed."""
_MOST_SECONDS_OF_A_PROGRAM = 300


def run_block(first: int, end: int, front: str, device: str, lines: int) -> None:
    """Run the programs of a block, and print one line of JSON before and after each."""
    sys.path.insert(0, str(machine.ROOT / "tests"))
    import torch

    from support.writes import blame, make_writes, run_writes

    torch.set_num_threads(1)
    logging.disable()
    for seed in range(first, end):
        chosen = front if front != "mixed" else FRONTS[seed % len(FRONTS)]
        print(json.dumps({"begins": seed, "front": chosen}), flush=True)
        told = asdict(run_writes(seed, chosen, lines=lines, device=device)) | {"front": chosen}
        if chosen.startswith("compile") and told["difference"] is not None:
            told["blame"] = blame(make_writes(seed, lines), chosen, device=device)
        print(json.dumps(told), flush=True)


@dataclass
class Tally:
    """How the runs came out so far."""

    seed: int
    front: str
    device: str
    lines: int
    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    dynamo: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    lock: Any = field(default_factory=threading.Lock)

    def add(self, outcome: dict[str, Any]) -> None:
        """Count one program."""
        with self.lock:
            self.counts.update({name: outcome.get(name, 0) for name in _COUNTS}, programs=1)
            self.counts[f"programs of {outcome['front']}"] += 1
            self.counts["never replayed"] += not outcome["front"].startswith("compile") and not outcome.get("replays")
            if outcome.get("refusal"):
                self.refused[outcome["refusal"].partition(":")[0]] += 1
            if outcome["difference"] is not None:
                told = {name: outcome[name] for name in ("seed", "front", "difference", "blame") if name in outcome}
                told["difference"] = told["difference"][:500]
                (self.dynamo if told.get("blame") == "dynamo" else self.wrong).append(told)
                print(f"differs: {told}", file=sys.stderr, flush=True)

    def line(self, runs: int) -> str:
        """Where it stands."""
        done = self.counts["programs"]
        speed = done / max(self.seconds, 1e-9)
        return (
            f"{done:,} of {runs:,} programs, {self.counts['replays']:,} replays, {len(self.wrong)} wrong, {speed:.1f}/s"
        )

    def told(self) -> dict[str, Any]:
        """All of it, as it stands in the file."""
        with self.lock:
            return {
                "environment": machine.facts(),
                **{name: getattr(self, name) for name in ("seed", "front", "device", "lines")},
                **self.counts,
                "refused by operation": dict(self.refused.most_common(30)),
                "Dynamo's own": len(self.dynamo),
                "Dynamo's own programs": sorted(self.dynamo, key=lambda item: item["seed"])[:_MOST_KEPT],
                "wrong": len(self.wrong),
                "wrong programs": sorted(self.wrong, key=lambda item: item["seed"])[:_MOST_KEPT],
                "seconds": round(self.seconds),
            }


def watch_block(first: int, end: int, tally: Tally, stop: float) -> None:
    """Run a block in a process, and go on behind a program that ends it."""
    while first < end and monotonic() < stop:
        command = ["benchmarks.writes", "--block", f"{first}:{end}", "--front", tally.front]
        command += ["--device", tally.device, "--lines", str(tally.lines)]
        for told in apart.outcomes(command, stop=stop, most_seconds=_MOST_SECONDS_OF_A_PROGRAM):
            if "crash" in told:
                seed, front = told.get("begins", first), told.get("front", tally.front)
                told = {"seed": seed, "front": front, "difference": f"ended with {told['crash']}"}
            tally.add(told)
            first = told["seed"] + 1


def sweep(tally: Tally, runs: int, out: Path, *, workers: int, block: int, seconds: float) -> None:
    """Run block by block until all are done or the time is up; the file is there after the first seconds."""
    start, ends = monotonic(), tally.seed + runs
    with ThreadPoolExecutor(workers) as pool:
        blocks = [
            pool.submit(watch_block, first, min(first + block, ends), tally, start + seconds)
            for first in range(tally.seed, ends, block)
        ]
        while not all(one.done() for one in blocks):
            threading.Event().wait(5)
            tally.seconds = monotonic() - start
            print(tally.line(runs), file=sys.stderr, flush=True)
            machine.write_whole(tally.told(), out)
    for one in blocks:
        one.result()
    tally.seconds = monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Random programs of writes, permutations, no-ops and aliases.")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="the first; the others follow it")
    parser.add_argument("--front", choices=(*FRONTS, "compile:aten", "mixed"), default="mixed")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lines", type=int, default=10, help="of each program")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--per-process", type=int, default=100, help="programs that run in one process")
    parser.add_argument("--seconds", type=float, default=10.0**9)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--block", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.block is not None:
        first, end = map(int, chosen.block.split(":"))
        run_block(first, end, chosen.front, chosen.device, chosen.lines)
        return
    tally = Tally(chosen.seed, chosen.front, chosen.device, chosen.lines)
    day = str(machine.facts()["date"])[:10]
    out = chosen.out or RESULTS / f"writes-{chosen.front.replace(':', '-')}-{chosen.device}-{day}.json"
    sweep(tally, chosen.runs, out, workers=chosen.workers, block=chosen.per_process, seconds=chosen.seconds)
    machine.write_whole(tally.told(), out)
    print(tally.line(chosen.runs))
    sys.exit(1 if tally.wrong else 0)


if __name__ == "__main__":
    main()

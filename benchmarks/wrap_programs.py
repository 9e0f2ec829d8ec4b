"""Random programs through the wrapper: `PYTHONPATH=src:tests python -m benchmarks.wrap_programs 20000 --out FILE.json`.

Each program is run by eager PyTorch and wrapped, on equal arguments, and compared in all that a user can see: right,
refused with a reason, invalid where eager itself raises, or wrong. The exit status is 1 if any was wrong.

A run that stops, after `--seconds` or by force, is taken up again by the same command with `--resume`: seeds that the file
already knows are left out. A file of other code is not taken up.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import sys
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import machine

_BLOCK = 50
_SAVED_AFTER = 10
"""So many blocks later the file is written again."""

Range = tuple[int, int]  # a seed and the one past the last


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "typed": {"is_typed": True},
    "sized": {"is_typed": True, "sizes": (2, 4, 2)},
}
"""Programs over float32, over several dtypes, and those with sizes that change from call to call, behind the backend."""


def judged(first: int, end: int, kind: str = "plain") -> tuple[Counter[str], list[str]]:
    """How the programs of a block came out, and what is known about wrong ones."""
    import torch

    from wrap.aot.programs import outcome

    torch.set_num_threads(1)
    logging.disable()
    warnings.simplefilter("ignore")
    found: Counter[str] = Counter()
    wrong = []
    for seed in range(first, end):
        try:
            told = outcome(seed, **KINDS[kind])
        except AssertionError as error:
            told = "wrong"
            wrong.append(str(error)[:1000])
        found[re.sub(r"`\w+`", "…", told.splitlines()[0])[:120]] += 1
    return found, wrong


@dataclass
class Tally:
    """Which seeds were judged so far, and how their programs came out."""

    seeds: list[Range] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0
    kind: str = "plain"

    def add(self, block: Range, found: Counter[str], wrong: list[str]) -> None:
        """Join what is known about a block of seeds."""
        joined: list[Range] = []
        for first, end in sorted([*self.seeds, block]):
            if joined and joined[-1][1] == first:
                first = joined.pop()[0]
            joined.append((first, end))
        self.seeds = joined
        self.found += found
        self.wrong += wrong

    def left(self, first: int, end: int) -> list[Range]:
        """Blocks of seeds between two that were not judged yet."""
        known = {seed for low, high in self.seeds for seed in range(low, high)}
        blocks: list[Range] = []
        for seed in (seed for seed in range(first, end) if seed not in known):
            if blocks and blocks[-1][1] == seed and seed - blocks[-1][0] < _BLOCK:
                blocks[-1] = blocks[-1][0], seed + 1
            else:
                blocks.append((seed, seed + 1))
        return blocks

    def told(self) -> dict[str, Any]:
        """All of it, as it stands in the file."""
        reasons = [(why, count) for why, count in self.found.most_common() if why.startswith("refused: ")]
        refused = {why.removeprefix("refused: "): count for why, count in reasons}
        valid = self.found.total() - self.found["invalid"]
        return {
            "environment": machine.facts(),
            "kind": self.kind,
            "seeds": self.seeds,
            "programs": self.found.total(),
            "valid": valid,
            "right": self.found["right"],
            "refused": sum(refused.values()),
            "refused share": round(sum(refused.values()) / max(valid, 1), 4),
            "refused by reason": refused,
            "wrong": self.found["wrong"],
            "wrong programs": self.wrong,
            "seconds": round(self.seconds),
        }

    @classmethod
    def read(cls, path: Path) -> Tally:
        """The tally of a file that the same code wrote."""
        told = json.loads(path.read_text())
        now = machine.facts()
        for fact in ("treeplay", "torch"):
            if told["environment"][fact] != now[fact]:
                sys.exit(f"{path} was made by {fact} {told['environment'][fact]}, this is {now[fact]}")
        found = Counter({f"refused: {why}": count for why, count in told["refused by reason"].items()})
        found.update(right=told["right"], wrong=told["wrong"], invalid=told["programs"] - told["valid"])
        seeds = [(first, end) for first, end in told["seeds"]]
        return cls(seeds, found, told["wrong programs"], told["seconds"], told.get("kind", "plain"))


def sweep(tally: Tally, seeds: Range, *, workers: int, seconds: float, out: Path | None) -> None:
    """Judge programs, block by block, until all are done or the time is up."""
    start, before = monotonic(), tally.seconds
    with ProcessPoolExecutor(workers) as pool:
        blocks = {pool.submit(judged, *block, tally.kind): block for block in tally.left(*seeds)}
        for number, block in enumerate(as_completed(blocks)):
            if block.cancelled():
                continue
            tally.add(blocks[block], *block.result())
            tally.seconds = before + monotonic() - start
            if out is not None and number % _SAVED_AFTER == 0:
                machine.write_whole(tally.told(), out)
            if monotonic() - start > seconds:
                for other in blocks:
                    other.cancel()
    if out is not None:
        machine.write_whole(tally.told(), out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Random programs through the wrapper.")
    parser.add_argument("programs", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--kind", choices=KINDS, default="plain")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true", help="leave out the seeds that the file already knows")
    chosen = parser.parse_args()
    tally = Tally.read(chosen.out) if chosen.resume and chosen.out is not None and chosen.out.exists() else Tally()
    if chosen.resume and tally.seeds and tally.kind != chosen.kind:
        sys.exit(f"{chosen.out} is about {tally.kind} programs")
    tally.kind = chosen.kind
    seeds = chosen.seed, chosen.seed + chosen.programs
    sweep(tally, seeds, workers=chosen.workers, seconds=chosen.seconds, out=chosen.out)
    print(json.dumps(tally.told(), indent=2, ensure_ascii=False))
    sys.exit(1 if tally.found["wrong"] else 0)


if __name__ == "__main__":
    main()

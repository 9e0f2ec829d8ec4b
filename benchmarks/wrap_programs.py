"""Random programs through the wrapper: `PYTHONPATH=src:tests python -m benchmarks.wrap_programs 20000 --out FILE.json`.

Each program is run by eager PyTorch and wrapped, on equal arguments, and compared in all that a user can see: right,
refused with a reason, invalid where eager itself raises, or wrong. The exit status is 1 if any was wrong.
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
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks import machine

_BLOCK = 50


def judged(first: int, count: int) -> tuple[Counter[str], list[str]]:
    """How the programs of a block came out, and what is known about wrong ones."""
    import torch

    from wrap.aot.programs import outcome

    torch.set_num_threads(1)
    logging.disable()
    warnings.simplefilter("ignore")
    found: Counter[str] = Counter()
    wrong = []
    for seed in range(first, first + count):
        try:
            told = outcome(seed)
        except AssertionError as error:
            told = "wrong"
            wrong.append(str(error)[:1000])
        found[re.sub(r"`\w+`", "…", told.splitlines()[0])[:120]] += 1
    return found, wrong


def sweep(programs: int, seed: int, workers: int, seconds: float) -> dict[str, Any]:
    """Judge programs, block by block, until all are done or the time is up."""
    start = monotonic()
    found: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(workers) as pool:
        blocks = [
            pool.submit(judged, at, min(_BLOCK, seed + programs - at)) for at in range(seed, seed + programs, _BLOCK)
        ]
        for block in as_completed(blocks):
            if block.cancelled():
                continue
            counts, told = block.result()
            found += counts
            wrong += told
            if monotonic() - start > seconds:
                for other in blocks:
                    other.cancel()
    refused = {why.removeprefix("refused: "): count for why, count in found.most_common() if why.startswith("refused")}
    valid = found.total() - found["invalid"]
    return {
        "environment": machine.facts(),
        "seed": seed,
        "programs": found.total(),
        "valid": valid,
        "right": found["right"],
        "refused": sum(refused.values()),
        "refused share": round(sum(refused.values()) / max(valid, 1), 4),
        "refused by reason": refused,
        "wrong": found["wrong"],
        "wrong programs": wrong[:20],
        "seconds": round(monotonic() - start),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Random programs through the wrapper.")
    parser.add_argument("programs", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    found = sweep(chosen.programs, chosen.seed, chosen.workers, chosen.seconds)
    text = json.dumps(found, indent=2, ensure_ascii=False)
    print(text)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(text + "\n")
    sys.exit(1 if found["wrong"] else 0)


if __name__ == "__main__":
    main()

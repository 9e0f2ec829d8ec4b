"""An exception of each type at each step of each way in, once: `python -m benchmarks.exceptions`.

The matrix is that of `tests/support/exceptions.py`. The result, with every cell that came out wrong, lies in
benchmarks/results/exceptions; the exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from pathlib import Path
from time import monotonic

from benchmarks import machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "exceptions"


def main() -> None:
    parser = argparse.ArgumentParser(description="An exception of each type at each step of each way in.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    sys.path.insert(0, str(machine.ROOT / "tests"))
    from support.exceptions import ERRORS, MATRIX, ON_GPU, WAYS, check

    logging.disable()
    start, right, wrong = monotonic(), Counter[str](), []
    for way, step, kind in MATRIX if chosen.device == "cpu" else ON_GPU:
        try:
            check(way, step, kind, chosen.device)
        except BaseException as error:
            wrong.append(
                {"way": way, "step": step, "exception": kind, "what": f"{type(error).__name__}: {error}"[:500]}
            )
        else:
            right[way] += 1
    told = {
        "environment": machine.facts() | {"device": chosen.device},
        "exceptions": list(ERRORS),
        "steps": {way: list(found.steps) for way, found in WAYS.items()},
        "cells": right.total() + len(wrong),
        "right": dict(right),
        "wrong": wrong,
        "seconds": round(monotonic() - start),
    }
    out = chosen.out or RESULTS / f"exceptions-{chosen.device}-{str(machine.facts()['date'])[:10]}.json"
    machine.write_whole(told, out)
    print(f"{told['cells']} cells, {len(wrong)} wrong, written to {out}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

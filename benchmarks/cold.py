"""Time to the third call of one variant in a fresh process, and to the last tier of treeplay's.

`python -m benchmarks.cold NAME VARIANT --out FILE.json`

The third call is the first that a long run has many of: treeplay replays from there on, and compiled peers are warm. The
clock starts when torch and treeplay are imported and the model is made; what a variant imports or compiles later counts.
By default treeplay's third call runs operators, and Inductor's code takes over later: it is called until then.
`benchmarks.run` gives this process an empty cache folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import treeplay
from benchmarks.programs import Program, find_program
from benchmarks.variants import make_batches, variants_of

CALLS = 3


def seconds_to_third_call(program: Program, variant: str) -> dict[str, float]:
    """Seconds until the third call has returned, and until the last tier serves."""
    batches = make_batches(program, CALLS)
    with torch.no_grad() if not program.is_training else contextlib.nullcontext():
        start = perf_counter()
        run: Any = variants_of(program)[variant](program)
        treeplay.settings.tiers = "background"
        for batch in batches:
            run(*batch)
        found = {"seconds": perf_counter() - start}
        if variant == "treeplay":
            while "took" not in run.statistics().keys[0].recordings[0].tier:
                for batch in batches:
                    run(*batch)
            found["last_tier_seconds"] = perf_counter() - start
        return found


def main() -> None:
    """Measure one variant and write its seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=seconds_to_third_call.__doc__)
    parser.add_argument("program")
    parser.add_argument("variant")
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    words.out.write_text(json.dumps(seconds_to_third_call(find_program(words.program), words.variant)))


if __name__ == "__main__":
    main()

"""Time to the third call of one variant in a fresh process: `python -m benchmarks.cold NAME VARIANT --out FILE.json`.

The third call is the first that a long run has many of: treeplay replays from there on, and compiled peers are warm. The
clock starts when torch and treeplay are imported and the model is made; what a variant imports or compiles later counts.
`benchmarks.run` gives this process an empty cache folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from time import perf_counter

import torch

from benchmarks.programs import Program, find_program
from benchmarks.variants import make_batches, variants_of

CALLS = 3


def seconds_to_third_call(program: Program, variant: str) -> float:
    """Seconds until the third call has returned."""
    batches = make_batches(program, CALLS)
    with torch.no_grad() if not program.is_training else contextlib.nullcontext():
        start = perf_counter()
        run = variants_of(program)[variant](program)
        for batch in batches:
            run(*batch)
        return perf_counter() - start


def main() -> None:
    """Measure one variant and write its seconds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cold", description=seconds_to_third_call.__doc__)
    parser.add_argument("program")
    parser.add_argument("variant")
    parser.add_argument("--out", type=Path, required=True)
    words = parser.parse_args()
    seconds = seconds_to_third_call(find_program(words.program), words.variant)
    words.out.write_text(json.dumps({"seconds": seconds}))


if __name__ == "__main__":
    main()

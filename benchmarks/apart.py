"""Pieces of work in a process of their own, of which a crash is a result.

The process tells of each piece by a line of JSON as it begins and as it is done.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from benchmarks import machine


def outcomes(arguments: Sequence[str], *, stop: float, most_seconds: float) -> Iterator[dict[str, Any]]:
    """What `python -m` with these arguments tells of each piece that is done.

    A piece that ends the process, or takes longer than `most_seconds`, is told by what was told as it began
    (`{"begins": ...}`), with the exit status under "crash". What the time `stop` cuts off is not told.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=machine.ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    )
    begun: dict[str, Any] = {}
    timer = _limit(process, stop, most_seconds)
    for line in process.stdout or ():
        timer.cancel()
        timer = _limit(process, stop, most_seconds)
        told = json.loads(line)
        if "begins" in told:
            begun = told
        else:
            begun = {}
            yield told
    timer.cancel()
    if process.wait() != 0 and monotonic() < stop:
        yield begun | {"crash": process.returncode}


def _limit(process: subprocess.Popen[str], stop: float, most_seconds: float) -> threading.Timer:
    timer = threading.Timer(max(1.0, min(stop - monotonic(), most_seconds)), process.kill)
    timer.daemon = True
    timer.start()
    return timer

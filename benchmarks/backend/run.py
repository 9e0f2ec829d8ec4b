"""Run all models, each in a process of its own, into one result file. `python -m benchmarks.backend.run --help`.

A model that crashes its process or takes longer than its limit is told with what it had measured so far; the file is written
after each model. Several workers share the machine's cores: on the CPU they check results and take no times; on GPUs, over
which they are spread, they compile side by side, and one at a time takes times on each.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from time import monotonic
from typing import Any

import torch
from rich.console import Console

from benchmarks.backend.measure import KINDS, TURN
from benchmarks.backend.model import SIZES
from benchmarks.backend.table import line_of, tables
from benchmarks.backend.ways import WAYS
from benchmarks.backend.zoo import MODELS
from benchmarks.gpu.machine import facts
from benchmarks.machine import ROOT

Result = dict[str, Any]
RESULTS = ROOT / "benchmarks" / "results" / "backend"
_LOG_WIDTH = 200


def measured(name: str, words: list[str], *, limit_seconds: float, threads: int | None, gpu: int | None) -> Result:
    """The result of one model, measured in a process of its own, on that GPU."""
    with tempfile.TemporaryDirectory(prefix="treeplay-models-") as folder:
        out, log = Path(folder) / "result.json", Path(folder) / "log"
        command = [sys.executable, "-m", "benchmarks.backend.measure", name, "--out", str(out), *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())}
        if threads is not None:
            environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        if gpu is not None:
            environment |= {
                "CUDA_VISIBLE_DEVICES": str(gpu),
                TURN: str(Path(tempfile.gettempdir(), f"treeplay-turn-{gpu}")),
            }
        died: str | None = None
        with log.open("w") as stream:
            try:
                ran = subprocess.run(
                    command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, timeout=limit_seconds, check=False
                )
            except subprocess.TimeoutExpired:
                died = f"took longer than {limit_seconds:.0f} s"
            else:
                died = f"ended with {ran.returncode}" if ran.returncode else None
        found: Result = json.loads(out.read_text()) if out.exists() else {"model": name}
        if died is not None:
            found["died"] = f"{died}: {log.read_text().strip()[-2000:]}"
        return found


def all_measured(
    names: list[str],
    words: list[str],
    *,
    workers: int,
    limit_seconds: float,
    total_seconds: float,
    threads: int | None,
    gpus: int,
) -> Iterator[Result]:
    """The results as they come, `workers` models at a time, spread over so many GPUs; at last with what there is by then."""
    end = monotonic() + total_seconds
    free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    for worker in range(workers):
        free.put(worker % gpus if gpus else None)

    def measured_on_next(name: str) -> Result:
        gpu = free.get()
        try:
            left = min(limit_seconds, end - monotonic())
            if left <= 0:
                return {"model": name, "died": "not begun in time"}
            return measured(name, words, limit_seconds=left, threads=threads, gpu=gpu)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(workers) as pool:
        for done in as_completed([pool.submit(measured_on_next, name) for name in names]):
            yield done.result()


def _python_path() -> list[str]:
    """Where this process finds modules, so that the measured one finds the same."""
    return [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def main() -> int:
    """Measure, print tables, write the result file. 1 if a treeplay way failed."""
    options = _parser().parse_args()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: there is no CUDA device here; try --device cpu --size tiny", file=sys.stderr)
        return 2
    gpus = torch.cuda.device_count() if options.device == "cuda" and options.workers > 1 else 0
    seconds = 0.0 if options.check or (options.workers > 1 and not gpus) else options.seconds
    words = ["--size", options.size, "--device", options.device, "--inner", options.inner, "--seconds", str(seconds)]
    words += ["--ways", *options.ways, "--kinds", *options.kinds]
    environment = facts(torch.device(options.device))
    out = options.json or RESULTS / f"models-{options.device}-{options.size}-{environment['date']:.10}.json"
    file: Result = {"environment": environment, "options": words, "models": []}
    console = Console(stderr=True)
    for result in all_measured(
        options.only,
        words,
        workers=options.workers,
        limit_seconds=options.limit,
        total_seconds=options.total,
        threads=options.threads,
        gpus=gpus,
    ):
        file["models"].append(result)
        file["models"].sort(key=lambda one: [model.name for model in MODELS].index(one["model"]))
        console.print(line_of(result), markup=False, highlight=False, soft_wrap=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(file, indent=1) + "\n")
    screen = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    for table in tables(file["models"]):
        screen.print(table)
    return 1 if any(_is_wrong(result) for result in file["models"]) else 0


def _is_wrong(result: Result) -> bool:
    ours = [result.get(kind, {}).get(way, {}) for kind in KINDS for way in ("backend", "jit")]
    return "died" in result or any(facts.get("error") for facts in ours)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backend.run", description=main.__doc__)
    names = [model.name for model in MODELS]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument(
        "--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY", help=", ".join(WAYS)
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--size", choices=SIZES, default="published")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--inner", choices=("inductor", "aten"), default="inductor", help="what makes treeplay's kernels"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for the times of each way of a model (default: 3)")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one model (default: 600)")
    parser.add_argument(
        "--total", type=float, default=float("inf"), help="seconds for all together (default: no limit)"
    )
    parser.add_argument("--check", action="store_true", help="only results and gradients, no times")
    parser.add_argument(
        "--workers", type=int, default=1, help="models at a time; on the CPU more than one takes no times"
    )
    parser.add_argument("--threads", type=int, help="threads of torch in each process")
    parser.add_argument("--json", type=Path, help="result file (default: one with today's date)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""The runner: every program in processes of its own, results in one file. `python -m benchmarks.run --help`.

program ─┬─▶ measure        all variants, interleaved, in one process
         ├─▶ cold treeplay  in a fresh process with an empty cache folder, and in another one that finds what that one cached
         └─▶ cold peer      likewise
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import ROOT, facts
from benchmarks.programs import PROGRAMS, Program, find_program
from benchmarks.table import RESULTS, as_rich, notes
from benchmarks.variants import strongest_peer

_SECONDS, _QUICK_SECONDS = 10.0, 3.0
_MEMORY_CALLS, _QUICK_MEMORY_CALLS = 2000, 200
_LONGEST_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Task:
    """One process to run: a module of this package and its words. `cold` names the variant that starts cold."""

    program: str
    words: tuple[str, ...]
    cold: str | None = None

    def __str__(self) -> str:
        return f"{self.program}: {'first calls of ' + self.cold if self.cold else 'all variants'}"


class TaskFailedError(RuntimeError):
    """A measuring process ended with an error."""


def tasks_of(program: Program, *, quick: bool) -> Iterator[Task]:
    """What there is to measure of `program`."""
    seconds, calls = (_QUICK_SECONDS, _QUICK_MEMORY_CALLS) if quick else (_SECONDS, _MEMORY_CALLS)
    yield Task(
        program.name, ("benchmarks.measure", program.name, "--seconds", str(seconds), "--memory-calls", str(calls))
    )
    if not quick:
        for variant in ("treeplay", strongest_peer(program)):
            yield Task(program.name, ("benchmarks.cold", program.name, variant), variant)


def run_task(task: Task) -> dict[str, Any]:
    """Run one process and read what it wrote. Raises `TaskFailedError`."""
    with tempfile.TemporaryDirectory(prefix="treeplay-bench-") as folder:
        out = Path(folder) / "out.json"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())}
        if task.cold:
            environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "inductor")
        words = [sys.executable, "-W", "ignore", "-m", *task.words, "--out", str(out)]
        found = _run(task, words, environment, out)
        if "last_tier_seconds" in found:
            found["last_tier_again_seconds"] = _run(task, words, environment, out)["last_tier_seconds"]
        return found


def _run(task: Task, words: list[str], environment: dict[str, str], out: Path) -> dict[str, Any]:
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=_LONGEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise TaskFailedError(f"{task}: not done after {_LONGEST_SECONDS} s") from None
    if done.returncode != 0:
        raise TaskFailedError(f"{task}:\n{done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def _python_path() -> list[str]:
    """Where this process finds modules, so that the measured one finds the same."""
    return [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def run_all(tasks: list[Task], console: Console) -> tuple[list[dict[str, Any]], list[str]]:
    """Run the tasks in order; the results by program, and what failed. A program that fails is left out."""
    results: dict[str, dict[str, Any]] = {}
    failures: list[str] = []
    for task in _shown(tasks, console):
        try:
            found = run_task(task)
        except TaskFailedError as error:
            failures.append(str(error))
            continue
        if task.cold is None:
            results[task.program] = {**found, "third_call_seconds": {}}
        elif task.program in results:
            results[task.program]["third_call_seconds"][task.cold] = found["seconds"]
            results[task.program] |= {name: value for name, value in found.items() if name.startswith("last_tier")}
    return list(results.values()), failures


def _shown(tasks: list[Task], console: Console) -> Iterable[Task]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(tasks))
        for task in tasks:
            progress.update(bar, description=str(task))
            yield task
            progress.advance(bar)


def main() -> int:
    """Measure, print a table, write the result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure treeplay and its peers.")
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--programs", nargs="+", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--out", type=Path, help="result file (default: one with today's date; none with --quick)")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no cold starts")
    words = parser.parse_args()
    console = Console(stderr=True)
    tasks = [task for name in words.programs for task in tasks_of(find_program(name), quick=words.quick)]
    results, failures = run_all(tasks, console)
    if results:
        Console().print(as_rich(results))
        Console().print("\n".join(notes(results)), markup=False, highlight=False, soft_wrap=True)
    out = words.out or (None if words.quick else RESULTS / f"cpu-{facts()['date']:.10}.json")
    if out is not None and results:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(results, indent=2) + "\n")
        console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)
    for failure in failures:
        console.print(f"failed: {failure}", markup=False, highlight=False, style="red", soft_wrap=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

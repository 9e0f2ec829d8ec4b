"""The runner: programs in a process beside it, results in one file. `python -m benchmarks.gpu.run --help`.

The file is written after each program. A program with which the process dies is measured once more without treeplay, so that
its peers are there and the failure is told; the programs after it get a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.gpu.programs import PROGRAMS
from benchmarks.gpu.table import as_rich, notes
from benchmarks.machine import ROOT

RESULTS = ROOT / "benchmarks" / "results"
VARIANTS = ("eager", "compile", "reduce-overhead", "floor", "backend", "treeplay")
_LONGEST_SECONDS = 280
_LOOK_SECONDS = 0.2
_LOG_WIDTH = 200

Result = dict[str, Any]


def measure_all(names: list[str], words: list[str], variants: list[str]) -> Iterator[Result]:
    """One result for each name. All share a process as long as it lives, since each needs half a minute to get going."""
    while names:
        with tempfile.TemporaryDirectory(prefix="treeplay-bench-") as folder:
            process = Process(names, words, variants, Path(folder))
            for name, result in process.results():
                yield result
                names = names[names.index(name) + 1 :]
            if not names:
                return
            yield _without_treeplay(process, names[0], words, variants)
            names = names[1:]


def _without_treeplay(process: Process, name: str, words: list[str], variants: list[str]) -> Result:
    """The result of a program with which a process died: its peers, if treeplay is what it died of."""
    died = process.why_it_ended()
    if "treeplay" in variants and len(variants) > 1:
        with tempfile.TemporaryDirectory(prefix="treeplay-bench-") as folder:
            again = Process([name], words, [one for one in variants if one != "treeplay"], Path(folder))
            for _, result in again.results():
                result["failed"]["treeplay"] = {"error": died}
                return result
    return {"program": name, "failed": {}, **process.read(name), "died": died}


class Process:
    """A process that measures programs in order, each into a file of its own."""

    def __init__(self, names: list[str], words: list[str], variants: list[str], folder: Path) -> None:
        self._names, self._folder = names, folder
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.measure", *names, "--out", str(folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(_python_path())}
        self._log = (folder / "log").open("w+")
        self._process = subprocess.Popen(
            [*command, *words, "--variants", *variants],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
        )

    def results(self) -> Iterator[tuple[str, Result]]:
        """Each program's result as soon as it is there; ends early if the process does."""
        for name in self._names:
            end = monotonic() + _LONGEST_SECONDS
            while "measured_in_seconds" not in self.read(name):
                if self._process.poll() is not None and "measured_in_seconds" not in self.read(name):
                    return
                if monotonic() > end:
                    self._process.kill()
                sleep(_LOOK_SECONDS)
            yield name, self.read(name)
        self._process.wait()

    def read(self, name: str) -> Result:
        """What there is of a program so far."""
        try:
            found: Result = json.loads((self._folder / f"{name}.json").read_text())
        except (OSError, json.JSONDecodeError):  # not begun, or being written
            return {}
        return found

    def why_it_ended(self) -> str:
        """The exit code and the last lines of the log."""
        self._process.wait()
        self._log.seek(0)
        return f"ended with {self._process.returncode}: {self._log.read().strip()[-2000:]}"


def _python_path() -> list[str]:
    """Where this process finds modules, so that the measured one finds the same."""
    return [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def shown(names: list[str], results: Iterable[Result], console: Console) -> Iterator[Result]:
    """The results, with a progress bar."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(names[0], total=len(names))
        for result in results:
            yield result
            done = names.index(result["program"]) + 1
            progress.update(bar, completed=done, description=names[min(done, len(names) - 1)])


def chosen(only: list[str] | None, part: str | None) -> list[str]:
    """The names of the programs to measure: those of `only`, or every n-th from the k-th for `part` k/n."""
    names = only or [program.name for program in PROGRAMS]
    if part is None:
        return names
    try:
        number, count = map(int, part.split("/"))
    except ValueError:
        raise SystemExit(f"--part: expected K/N such as 1/2, found {part!r}") from None
    if not 1 <= number <= count:
        raise SystemExit(f"--part: expected a part from 1/{count} to {count}/{count}, found {part}")
    return names[number - 1 :: count]


def line_of(result: Result) -> str:
    """One program's outcome for a log: wall and host microseconds, and what failed."""
    wall, host = result.get("wall_us", {}), result.get("host_us", {})
    times = ", ".join(f"{name} {wall[name]['median']:.1f} ({host[name]['median']:.1f})" for name in wall)
    failures = {**result.get("failed", {}), **({"process": {"error": result["died"]}} if "died" in result else {})}
    told = "".join(f"\n  failed: {name}: {failure['error'][:400]}" for name, failure in failures.items())
    return f"{result['program']}: {times or 'nothing measured'}, {result.get('measured_in_seconds', 0):.0f} s{told}"


def main() -> int:
    """Measure, print a table, write the result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.run", description="Measure on one NVIDIA GPU.")
    names = [program.name for program in PROGRAMS]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--part", metavar="K/N", help="every N-th program from the K-th on")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=4.0, help="for the timing of one program (default: 4)")
    parser.add_argument("--json", type=Path, help="result file (default: one with today's date)")
    parser.add_argument("--device", default="cuda", help="cpu only tries the harness out")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: there is no CUDA device here; the CPU is measured by: python -m benchmarks.run", file=sys.stderr)
        return 2
    console, results = Console(stderr=True), []
    words = ["--seconds", str(options.seconds), "--device", options.device]
    programs = chosen(options.only, options.part)
    out = options.json or (_default_out() if options.device == "cuda" else None)
    for result in shown(programs, measure_all(programs, words, options.variants), console):
        console.print(line_of(result), markup=False, highlight=False, soft_wrap=True)
        results.append(result)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(results, indent=2) + "\n")
    screen = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    screen.print(as_rich(results))
    screen.print("\n".join(notes(results)), markup=False, highlight=False, soft_wrap=True)
    return 1 if any(result["failed"] or "died" in result for result in results) else 0


def _default_out() -> Path:
    from benchmarks.machine import facts

    return RESULTS / f"cuda-{facts()['date']:.10}.json"


if __name__ == "__main__":
    sys.exit(main())

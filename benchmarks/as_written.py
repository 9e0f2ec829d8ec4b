"""Everyday programs as their authors write them, in four ways: `python -m benchmarks.as_written [--device cuda]`.

Each way of each program runs in a process of its own: first with empty caches and a clock that starts at its first call, then
in rounds, in turn with eager, when nothing is left to record or compile. A way that raises, ends the process or takes too long
is a result like any other. With `--jobs` several compile at once; the rounds of one never run beside another's.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "as_written"
Call = Callable[[int], Any]
WAYS = "torch.compile", "treeplay.jit", 'torch.compile(backend="treeplay")'
FIRST, WARM, ROUNDS = 20, 200, 9  # calls, calls, rounds
ROUND_SECONDS, MOST_SECONDS, MOST_TO_SETTLE = 0.05, 20.0, 60.0


def wrapping(way: str, wrapped: list[Any]) -> Callable[[Any], Any]:
    """What a user writes around a program; what it gives is noted in `wrapped`."""
    import torch

    import treeplay

    wraps: dict[str, Callable[[Any], Any]] = {
        "eager": lambda program: program,
        "torch.compile": torch.compile,
        "treeplay.jit": treeplay.jit,
        'torch.compile(backend="treeplay")': lambda program: torch.compile(program, backend="treeplay"),
    }

    def wrap(program: Any) -> Any:
        wrapped.append(wraps[way](program))
        return wrapped[-1]

    return wrap


def measure(name: str, way: str, device_name: str) -> dict[str, Any]:
    """One program in one way, and eager in the same rounds."""
    import torch
    import torch._inductor.compile_fx  # what loading a compiler takes is nobody's first call

    from benchmarks.everyday import PROGRAMS

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device, wrapped = torch.device(device_name), []
    calls: dict[str, Call] = {}
    for each in ("eager", way):
        torch.manual_seed(0)
        calls[each] = PROGRAMS[name](wrapping(each, wrapped), device)
    found: dict[str, Any] = {}
    results = {each: [] for each in calls}
    start = perf_counter()
    for each, call in calls.items():
        start = perf_counter()
        for number in range(FIRST):
            results[each].append(call(number))
            if perf_counter() - start > 3 * MOST_SECONDS:
                break
        _wait(device)
        found["first, s" if each == way else "eager first, s"] = round(perf_counter() - start, 3)
    if len(results[way]) < FIRST:
        found["first calls"] = len(results[way])
    found["agrees"] = all(
        torch.allclose(mine.float(), other.float(), rtol=1e-2, atol=1e-2)
        for mine, other in zip(results[way], results["eager"], strict=False)
    )
    found |= _steady(calls, wrapped[1], way, device, start=len(results[way]))
    return found | _share(wrapped[1], way)


def _steady(calls: dict[str, Call], wrapped: Any, way: str, device: Any, *, start: int) -> dict[str, Any]:
    """Medians of rounds in turn, in µs per call, and their ratio, once all that is recorded and compiled has been."""
    from treeplay.tree.tiers import compile_thread

    number, begun = start, perf_counter()
    # What is compiled is then tried against what it is to replace; a backward comes after its forward.
    for _ in range(2):
        number = _settled(calls, wrapped, way, start=number)
        # What compiles in the background would take a processor from what is timed.
        compile_thread.wait(3 * MOST_SECONDS)
    found = {"settled after, s": round(perf_counter() - begun, 1)}
    with _alone():
        before = _counts(wrapped, way)
        found |= _rounds(calls, way, device, start=number)
        after = _counts(wrapped, way)
    if way == "treeplay.jit":
        found["replayed"] = round((after["replays"] - before["replays"]) / max(1, after["calls"] - before["calls"]), 4)
    return found


def _settled(calls: dict[str, Call], wrapped: Any, way: str, *, start: int) -> int:
    """Call until a batch of calls finds nothing to record any more; the number of the next call."""
    begun = perf_counter()
    while True:
        before = _counts(wrapped, way)
        for number in range(start, start + WARM):
            for call in calls.values():
                call(number)
            if perf_counter() - begun > MOST_TO_SETTLE:
                return number + 1
        start += WARM
        if _counts(wrapped, way).get("unrecorded") == before.get("unrecorded"):
            return start


def _counts(wrapped: Any, way: str) -> dict[str, int]:
    """Calls of a program of treeplay's so far, those that were replayed, and those that a later recording may serve."""
    if way != "treeplay.jit":
        return {}
    from treeplay.tree.all_sizes.calls import COMPILING
    from treeplay.tree.answers import OBSERVED, OVER_BUDGET

    found = wrapped.statistics()
    unrecorded = sum(found.not_replayed.get(why, 0) for why in (OBSERVED, "warm-up", OVER_BUDGET, COMPILING))
    return {"calls": found.calls, "replays": found.replays, "unrecorded": unrecorded}


def _rounds(calls: dict[str, Call], way: str, device: Any, *, start: int) -> dict[str, Any]:
    begun, number = perf_counter(), start
    per_call = {each: _round(call, device, number, 5, most_seconds=MOST_SECONDS / 10) for each, call in calls.items()}
    count = max(1, min(1000, int(ROUND_SECONDS / max(per_call.values()))))
    times: dict[str, list[float]] = {each: [] for each in calls}
    for _ in range(ROUNDS):
        number += count
        for each, call in calls.items():
            times[each].append(_round(call, device, number, count, most_seconds=MOST_SECONDS / 10))
        if perf_counter() - begun > MOST_SECONDS / 2:
            break
    late = {each: median(rounds[len(rounds) // 3 :]) * 1e6 for each, rounds in times.items()}
    ratio = round(late[way] / late["eager"], 3)
    rounds = len(times[way])
    return {"eager, us": round(late["eager"], 1), "us": round(late[way], 1), "of eager": ratio, "calls": count * rounds}


@contextmanager
def _alone() -> Iterator[None]:
    """Beside nobody else's rounds."""
    with (Path(tempfile.gettempdir()) / "treeplay-as-written.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _round(call: Call, device: Any, start: int, count: int, *, most_seconds: float) -> float:
    """Seconds for one of `count` calls."""
    begun = perf_counter()
    for number in range(start, start + count):
        call(number)
        if count < 16 and perf_counter() - begun > most_seconds:  # more are taken for quick ones
            break
    _wait(device)
    return (perf_counter() - begun) / (number - start + 1)


def _share(program: Any, way: str) -> dict[str, Any]:
    """What became of calls that were not replayed, over all; how many graphs were. The backend records on GPUs only."""
    import treeplay

    if way == "treeplay.jit":
        statistics = program.statistics()
        others = {why: count for why, count in statistics.not_replayed.items() if count}
        return {"not replayed": others}
    if "treeplay" in way:
        launches = [report.launch.launches for report in treeplay.graph_reports() if report.launch is not None]
        return {"graphs": len(treeplay.graph_reports()), "launches": sum(launches)}
    return {}


def _wait(device: Any) -> None:
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize()


def apart(name: str, way: str, device: str) -> dict[str, Any]:
    """The same in a process with empty caches, of which a crash is a result."""
    command = [sys.executable, "-m", "benchmarks.as_written", "--work", name, way, "--device", device]
    with tempfile.TemporaryDirectory(prefix="as-written-") as folder:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=10 * MOST_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {"error": f"took longer than {10 * MOST_SECONDS:.0f} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    return {"error": last[0][:300] if last else f"ended with {done.returncode}"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Everyday programs as their authors write them, in four ways.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--only", default="", help="programs whose name contains this; a file of today keeps the others"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes at once; one on a machine of two cores")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        print(json.dumps(measure(*chosen.work, chosen.device)))
        return
    import torch

    from benchmarks.everyday import PROGRAMS
    from benchmarks.gpu.machine import facts

    environment = facts(torch.device(chosen.device)) | {"threads": 1, "processes at once": chosen.jobs}
    result: dict[str, Any] = {
        "environment": environment,
        "unit": f"us per call, median of rounds in turn with eager; s for the first {FIRST} calls with empty caches",
        "programs": {},
    }
    out = chosen.out or RESULTS / f"{chosen.device}-{str(environment['date'])[:10]}.json"
    if chosen.only and out.exists():
        result["programs"] = json.loads(out.read_text())["programs"]
    names = [name for name in PROGRAMS if chosen.only in name]
    with ThreadPoolExecutor(chosen.jobs) as pool:
        rows = {(name, way): pool.submit(apart, name, way, chosen.device) for name in names for way in WAYS}
        for name in names:
            result["programs"][name] = {way: rows[name, way].result() for way in WAYS}
            print(name, *(f"{way}: {row}" for way, row in result["programs"][name].items()), sep="\n  ", flush=True)
            machine.write_whole(result, out)


if __name__ == "__main__":
    main()

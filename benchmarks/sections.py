"""Tables of docs/speed.md that stand behind the first two, each from the newest file of a folder of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.layout import for_readme

Result = dict[str, Any]


def newest(folder: Path, device: str) -> Result | None:
    """The result that was measured last on a kind of device, by the date inside; None if there is none."""
    results: list[Result] = [json.loads(path.read_text()) for path in folder.glob(f"{device}-*.json")]
    return max(results, key=lambda result: str(result["environment"]["date"]), default=None)


def _measured_on(result: Result) -> str:
    where = result["environment"]
    return f"{where['gpu']}, torch {where['torch']}, treeplay {where['treeplay']}, {where['date']:.10}."


def steps(folder: Path) -> list[str]:
    """Training steps behind `torch.compile` beside `reduce-overhead`, with the eager optimizer, from the newest file."""
    result = newest(folder / "steps", "cuda")
    if result is None:
        return []
    measured = {name: program for name, program in sorted(result["programs"].items()) if "failed" not in program}
    ways = list(next(iter(measured.values()))["wall_us"])
    rows = [
        (
            name,
            *(f"{program['wall_us'][way]['median']:,.0f} / {program['host_us'][way]['median']:,.0f}" for way in ways),
            "{median:.2f} × ({low:.2f} to {high:.2f})".format(**program["speedup"]),
        )
        for name, program in measured.items()
    ]
    rows += [(name, *["failed"] * (len(ways) + 1)) for name in sorted({*result["programs"]} - {*measured})]
    note = (
        "µs per call of many in a row / until a call returns. Each program in a process of its own, its ways interleaved; "
        "the last column is `reduce-overhead`'s time divided by the backend's, round by round, with the middle half. "
        f"{_measured_on(result)} "
        "`python -m benchmarks.gpu.steps` repeats it."
    )
    head = ("program", *(f"`{way}`" for way in ways), "beside `reduce-overhead`")
    return ["## Training steps behind `torch.compile`, with the eager optimizer", for_readme(head, rows, [note])]


def memory(folder: Path) -> list[str]:
    """What training steps take of a GPU's memory, each way in a process of its own, from the newest file."""
    result = newest(folder / "memory", "cuda")
    if result is None:
        return []
    ways = list(dict.fromkeys(way for by_way in result["programs"].values() for way in by_way))
    rows = [(name, *(_mib(by_way.get(way, {})) for way in ways)) for name, by_way in sorted(result["programs"].items())]
    note = (
        "MiB reserved at most over the first six calls, in which steps are recorded / over six warm calls / between warm calls "
        f'with caches emptied; "-": not measured. Scratch of recordings is counted. {result.get("note", "")}. '
        f"{_measured_on(result)} "
        "`python -m benchmarks.gpu.peaks` repeats it."
    )
    return ["## Memory of training steps", for_readme(("program", *(f"`{way}`" for way in ways)), rows, [note])]


def _mib(found: Result) -> str:
    if not found:
        return "-"
    if "failed" in found:
        return "failed"
    return " / ".join(f"{found[key]:,}" if key in found else "-" for key in ("peak_mib", "running_mib", "warm_mib"))


def as_written(folder: Path) -> list[str]:
    """Everyday programs as their authors write them: each way beside eager in the same process, newest file of each device."""
    parts = []
    for device in ("cuda", "cpu"):
        result = newest(folder / "as_written", device)
        if result is None:
            continue
        ways = list(next(iter(result["programs"].values())))
        rows = [(name, *(_beside_eager(by_way[way]) for way in ways)) for name, by_way in result["programs"].items()]
        where = result["environment"]
        note = (
            "Time of a call as a share of eager's in the same process, once the first calls are over; in brackets, the seconds "
            "that the first calls take, with empty caches. Above 1 a way is slower than eager. "
            f"{where['processor']}, {where['threads']} thread; torch {where['torch']}, Python {where['python']}, "
            f"treeplay {where['treeplay']}, {where['date']:.10}. `python -m benchmarks.as_written` repeats it."
        )
        parts += [
            f"Everyday programs as their authors write them, on a {'GPU' if device == 'cuda' else 'CPU'}:",
            for_readme(("program", *(f"`{way}`" for way in ways)), rows, [note]),
        ]
    return parts


def _beside_eager(found: Result) -> str:
    if "of eager" not in found:
        return "raises"
    return f"{found['of eager']:.2f} ({found['first, s']:.1f} s)"

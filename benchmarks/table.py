"""The newest results in docs/speed.md and docs/backend.md as tables, and in README.md in a few sentences:
`python -m benchmarks.table`, or `--check` them. The figure of README.md is `benchmarks.plot`'s.

In docs/speed.md a GPU's table comes first, then the CPU's. What is written stands between two markers, `<!-- benchmarks -->`
and `<!-- /benchmarks -->`; nothing else is touched.
"""

from __future__ import annotations

import argparse
import collections
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks import sections
from benchmarks.backend import page as backend_page
from benchmarks.gpu import table as gpu_table
from benchmarks.gpu.programs import PROGRAMS as GPU_PROGRAMS
from benchmarks.layout import for_readme, for_terminal, uncommitted
from benchmarks.machine import ROOT

RESULTS = ROOT / "benchmarks" / "results"
README = ROOT / "README.md"
SPEED = ROOT / "docs" / "speed.md"
BACKEND = ROOT / "docs" / "backend.md"
START, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
HEAD = (
    "program",
    "eager",
    "compile",
    "compile + opt",
    "treeplay",
    "vs best peer",
    "own share",
    "third call after",
    "compiled after",
)

Result = dict[str, Any]


class TableError(RuntimeError):
    """The table cannot be made or put in its place."""


def newest_result(folder: Path = RESULTS) -> Path:
    """The CPU result file that was measured last, by the date inside."""
    files = [path for path in folder.glob("*.json") if _environment(path).get("device") == "cpu"]
    if not files:
        raise TableError(f"there is no CPU result file in {folder}; make one with: python -m benchmarks.run")
    return max(files, key=lambda path: str(_environment(path)["date"]))


def newest_gpu_results(folder: Path = RESULTS) -> list[Result]:
    """The last measurement of each GPU program, whichever file it is in: a run may be split into parts."""
    newest: dict[str, Result] = {}
    for path in folder.glob("*.json"):
        for result in json.loads(path.read_text()):
            if result.get("environment", {}).get("device") == "cuda":
                known = newest.get(result["program"])
                if known is None or known["environment"]["date"] < result["environment"]["date"]:
                    newest[result["program"]] = result
    return [newest[program.name] for program in GPU_PROGRAMS if program.name in newest]


def _environment(path: Path) -> dict[str, Any]:
    results = json.loads(path.read_text())
    found: dict[str, Any] = results[0].get("environment", {}) if results else {}
    return found


def row(result: Result) -> tuple[str, ...]:
    """One program's cells."""
    times = {name: f"{spread['median']:,.0f}" for name, spread in result["us"].items()}
    speedup = result["speedup"]
    return (
        result["title"],
        *(times.get(name, "–") for name in ("eager", "compile", "compile+opt", "treeplay")),
        f"{speedup['median']:.2f} × ({speedup['low']:.2f} to {speedup['high']:.2f})",
        f"{result['own_share_us']['median']:.0f}",
        _third_call(result["third_call_seconds"]),
        _compiled_after(result),
    )


def _third_call(seconds: dict[str, float]) -> str:
    """treeplay's time to the third call, and the peer's."""
    if not seconds:
        return "–"
    peers = [value for name, value in seconds.items() if name != "treeplay"]
    return " / ".join(f"{value:.1f} s" for value in (seconds["treeplay"], *peers))


def _compiled_after(result: Result) -> str:
    """Seconds until the last tier serves, with empty caches and with those of an earlier process."""
    if "last_tier_seconds" not in result:
        return "–"
    again = f" ({result['last_tier_again_seconds']:.1f} s)" if "last_tier_again_seconds" in result else ""
    return f"{result['last_tier_seconds']:.1f} s{again}"


def as_rich(results: list[Result]) -> Table:
    """The table for a terminal, with programs by their short names."""
    return for_terminal(*gpu_table.filled(HEAD, [(result["program"], *row(result)[1:]) for result in results]))


def as_markdown(results: list[Result]) -> str:
    """The table and its notes for a page."""
    return for_readme(*gpu_table.filled(HEAD, list(map(row, results))), notes(results))


def notes(results: list[Result]) -> list[str]:
    """What the numbers mean and where they were measured."""
    grown = max(result["memory"]["grown_bytes"] for result in results) // 1024
    calls = results[0]["memory"]["calls"]
    where = results[0]["environment"]
    return [
        "Medians in µs per call, all variants interleaved in one process.",
        '"compile" is `torch.compile(model)`, "+ opt" adds `torch.compile(optimizer.step)`.',
        "\"vs best peer\": the fastest peer's time divided by treeplay's, with the middle half of the rounds.",
        '"third call after": from a cold start with empty caches, treeplay / the peer that compiles most.',
        *([_COMPILED_AFTER] if any("last_tier_seconds" in result for result in results) else []),
        *([_IN_BRACKETS] if any("last_tier_again_seconds" in result for result in results) else []),
        '"own share": of a warm call, what treeplay spends around the compiled artifact.',
        f"The process grows by at most {max(grown, 0):,} KiB over {calls:,} warm calls.",
        f"{where['processor']}, {where['cores']} cores, {where['threads']} threads; torch {where['torch']},",
        f"Python {where['python']}, treeplay {where['treeplay']}{uncommitted(where['treeplay'])}, {str(where['date'])[:10]}.",
    ]


_COMPILED_AFTER = '"compiled after": until code of Inductor\'s serves; operators are replayed while it is compiled.'
_IN_BRACKETS = "In brackets, with the caches of an earlier process."


def with_table(text: str, table: str) -> str:
    """`text` with `table` between the markers."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise TableError(f"there is no pair of markers {START} … {END}")
    return f"{before}{START}\n{table}\n{END}{after}"


def all_tables(folder: Path = RESULTS) -> str:
    """What stands between the markers."""
    gpu, cpu = newest_gpu_results(folder), json.loads(newest_result(folder).read_text())
    tables = [as_markdown(cpu)]
    if gpu:
        tables = [
            f"On a GPU ({gpu[0]['environment'].get('gpu')}):\n\n{gpu_table.as_markdown(gpu)}",
            "On a CPU:",
            *tables,
        ]
    return "\n\n".join([*tables, *sections.as_written(folder), *sections.steps(folder), *sections.memory(folder)])


def summary(folder: Path = RESULTS) -> str:
    """What the README says of the results, with what treeplay loses."""
    gpu, cpu = newest_gpu_results(folder), json.loads(newest_result(folder).read_text())
    times = [result["speedup"]["median"] for result in cpu]
    where, slowest, fastest = cpu[0]["environment"], _number(min(times)), _number(max(times))
    on_a_cpu = (
        f"On {where['cores']} cores of a CPU ({where['processor']}), over {len(cpu)} small programs, it is {slowest} to "
        f"{fastest} × as fast as the fastest of eager and `torch.compile`."
    )
    return "\n\n".join([*([_on_the_gpu(gpu)] if gpu else []), on_a_cpu])


_PEERS = {"eager": "eager", "compile": "`torch.compile`", "reduce-overhead": "`reduce-overhead`"}


def _on_the_gpu(results: list[Result]) -> str:
    """How many times as fast as each peer it is, where it is slower, and what the first calls take."""
    told = []
    for peer, name in _PEERS.items():
        us = [result["wall_us"] for result in results if {peer, "treeplay"} <= result.get("wall_us", {}).keys()]
        times = sorted(one[peer]["median"] / one["treeplay"]["median"] for one in us)
        median, ends = _number(statistics.median(times)), f"{_number(times[0])} to {_number(times[-1])}"
        told.append(f"{median} × as fast as {name} ({ends})")
    seconds = {
        way: [result["variants"][way]["first_calls_seconds"] for result in results if way in result.get("variants", {})]
        for way in ("treeplay", "compile")
    }
    ours, theirs = (f"{min(each):.0f} to {max(each):.0f} s" for each in seconds.values())
    lines = [
        f"In the median of {len(results)} programs on {_gpus(results)}, a call is {told[0]}, {told[1]},",
        f"and {told[2]}.",
        *gpu_table.slower(results),
        f"If all is compiled before it runs, the first three calls take {ours} with empty caches (`torch.compile`: {theirs}).",
    ]
    return " ".join(lines)


def _gpus(results: list[Result]) -> str:
    """Which GPUs were measured, and how many programs on each if there are several."""
    programs = collections.Counter(result["environment"]["gpu"] for result in results).most_common()
    return " and ".join(f"an {gpu} ({count})" if len(programs) > 1 else f"an {gpu}" for gpu, count in programs)


def _number(value: float) -> str:
    """With two digits that count."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 10 else f"{value:.0f}"


def update(page: Path, new_text: str, *, only_check: bool) -> bool:
    """Put the text between the markers of `page`, or only look; whether it was current."""
    if not page.is_file():
        raise TableError(f"there is no file {page}")
    old = page.read_text(encoding="utf-8")
    new = with_table(old, new_text)
    if not only_check and new != old:
        page.write_text(new, encoding="utf-8")
    return new == old


def main() -> int:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.table", description="The results in README.md and docs/."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is not current")
    words = parser.parse_args()
    shown, is_current = RESULTS.relative_to(ROOT), True
    for page, make in PAGES.items():
        try:
            was_current = update(page, make(), only_check=words.check)
        except TableError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        name = page.relative_to(ROOT)
        if words.check and not was_current:
            print(f"error: {name} does not show {shown}; run: make table", file=sys.stderr)
            is_current = False
        else:
            print(f"{name} {'' if was_current else 'now '}shows {shown}")
    return 0 if is_current else 1


PAGES: dict[Path, Callable[[], str]] = {
    README: summary,
    SPEED: all_tables,
    BACKEND: lambda: backend_page.page(RESULTS),
}


if __name__ == "__main__":
    sys.exit(main())

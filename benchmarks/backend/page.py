"""What stands between the markers of docs/backend.md: the newest results about the backend, as tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import backend_compile, backend_overhead
from benchmarks.backend.agreement import DIFFERENCES
from benchmarks.backend.measure import KINDS
from benchmarks.backend.ways import WAYS
from benchmarks.gpu import table as gpu_table
from benchmarks.layout import for_readme, uncommitted

Result = dict[str, Any]
_OURS = ("backend", "jit")


def page(results: Path) -> str:
    """All tables of the page, of what there are results."""
    tables: tuple[tuple[str, Callable[[Any], Iterator[str]]], ...] = (
        ("backend/overhead-cpu-*.json", _overhead),
        ("wrap/cost-cpu-*.json", _wrapping),
        ("backend/compile-cpu-*.json", _compiling),
        ("backend/launch-cuda-*.json", _launches),
        ("backend/models-cuda-published-*.json", _models),
    )
    parts = [part for pattern, table in tables for path in newest(results, pattern) for part in table(_read(path))]
    return "\n\n".join(parts)


def newest(results: Path, pattern: str) -> list[Path]:
    """The last file by its name, which ends with a date; none if there is none."""
    return sorted(results.glob(pattern))[-1:]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _overhead(results: list[Result]) -> Iterator[str]:
    yield "Stacks of linear layers of width 8, in µs of processor time a call:"
    notes = [
        '"empty": behind a backend that does nothing; "inductor": behind treeplay; "default": `torch.compile` as it comes.',
        _where(results[0]),
    ]
    yield for_readme(backend_overhead.HEAD, map(backend_overhead.row, results), notes)


def _wrapping(result: Result) -> Iterator[str]:
    parts = {
        kind: facts["added us"] for kind, facts in result.items() if isinstance(facts, dict) and "added us" in facts
    }
    told = ", ".join(
        f"{added['treeplay']:.1f} for {kind} (torch's: {added['torch']:.1f})" for kind, added in parts.items()
    )
    yield f"The functions around a graph add, in µs a call, {told}. {_where(result)}"


def _compiling(results: list[Result]) -> Iterator[str]:
    yield "From a model to its first result with empty caches, in seconds of processor time:"
    yield for_readme(backend_compile.HEAD, map(backend_compile.row, results), [_where(results[0])])


def _launches(results: list[Result]) -> Iterator[str]:
    host = "; ".join(
        f"{result['title']}: {result['host_us']['backend']['median']:,.0f}" for result in results if "host_us" in result
    )
    yield f"On a GPU, where a call behind treeplay as the backend returns after so many µs ({host}):"
    yield gpu_table.as_markdown(results)


def _models(file: Result) -> Iterator[str]:
    dates = ", ".join(str(run["date"])[:16].replace("T", " ") for run in file.get("runs", ()))
    yield (
        "Models of published configurations with random weights, each way compared with eager in full precision: milliseconds "
        "a call, then the largest difference of any result, gradient or updated parameter, relative to the largest value. "
        '"eager\'s own" is how far eager is from float64.'
    )
    for kind in KINDS:
        rows = [_model(result, kind) for result in file["models"] if result.get(kind)]
        head = (kind, *WAYS, "backend differs", "jit differs", "eager's own")
        notes = [
            "Processes compiled side by side, and one at a time took times on each GPU, while others of it may have checked "
            "their results: some of these times are too high, up to twice.",
            f"{_where(file)}" if not dates else f"{_where(file)} Runs: {dates}.",
        ]
        yield for_readme(head, rows, notes if kind == KINDS[-1] else []).strip()


def _model(result: Result, kind: str) -> tuple[str, ...]:
    ways = result[kind]
    times = (f"{ways[way]['us']['median'] / 1000:.2f}" if "us" in ways.get(way, {}) else "–" for way in WAYS)
    differ = (_shown([ways[way][name] for name in DIFFERENCES if name in ways.get(way, {})]) for way in _OURS)
    return result["title"], *times, *differ, _shown([ways["eager"]["rounding"]])


def _shown(found: list[float]) -> str:
    return "–" if not found else f"{max(found):.0e}" if max(found) else "0"


def _where(result: Result) -> str:
    where = result["environment"]
    machine = where.get("gpu") or f"{where['processor']}, {where['cores']} cores"
    return (
        f"{machine}; torch {where['torch']}, Python {where['python']}, treeplay {where['treeplay']}"
        f"{uncommitted(where['treeplay'])}, {str(where['date'])[:10]}."
    )

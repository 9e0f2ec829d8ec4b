"""Results of the models as a line for a log, and as tables: what is right, and what a call takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.table import Table

from benchmarks.backend.agreement import DIFFERENCES
from benchmarks.backend.measure import KINDS

Result = dict[str, Any]
_AGREEMENT = (*DIFFERENCES, "rounding")


def line_of(result: Result) -> str:
    """One model's outcome for a log."""
    told = [f"missing: {result['missing']}"] if result.get("missing") else []
    for kind in KINDS:
        ways = ", ".join(f"{name} {cell_of(facts)}" for name, facts in result.get(kind, {}).items())
        told += [f"{kind}: {ways}"] if ways else []
    told += [f"died: {result['died'][:400]}"] if "died" in result else []
    return f"{result['model']}: {'; '.join(told)}"


def tables(results: list[Result]) -> Iterator[Table]:
    """One table for inference and one for training."""
    for kind in KINDS:
        names = list(dict.fromkeys(name for result in results for name in result.get(kind, {})))
        if not names:
            continue
        what = "milliseconds a call, seconds of the first calls, largest difference from eager (eager's: from float64)"
        table = Table(title=f"{kind}: {what}")
        for column in ("model", *names):
            table.add_column(column)
        for result in results:
            missing = "died" if "died" in result else "not installed" if result.get("missing") else "not measured"
            ways = result.get(kind, {})
            table.add_row(result["model"], *(cell_of(ways[name]) if name in ways else missing for name in names))
        yield table


def cell_of(facts: Result) -> str:
    """Of one way: its error, or its times and how far it is from eager."""
    if facts["error"]:
        return f"error: {facts['error'].splitlines()[0][:60]}"
    parts = [f"{facts['us']['median'] / 1000:.2f} ms"] if "us" in facts else []
    parts += [f"{facts['first_calls_seconds']:.1f} s"]
    found = [facts[name] for name in _AGREEMENT if name in facts]
    parts += [f"{max(found):.0e}"] if found else []
    parts += ["fell back"] if facts.get("fallbacks") else []
    return ", ".join(parts)

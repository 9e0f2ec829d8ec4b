"""How a benchmark on the CPU ends: its table on the screen, its result file, and what is over its limits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import machine

RESULTS = machine.ROOT / "benchmarks" / "results" / "backend"


def told(results: list[dict[str, Any]], table: Table, problems: Sequence[str], *, name: str, out: Path | None) -> int:
    """Show the table, write the results (by default to a file of `name` and today's date), name the problems; 1 if any."""
    console = Console()
    console.print(table)
    out = out or RESULTS / f"{name}-cpu-{machine.facts()['date']:.10}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)
    for problem in problems:
        console.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0

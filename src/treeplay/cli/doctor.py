"""`treeplay doctor`: what is installed, what this machine is, and how programs will be lowered on it."""

from __future__ import annotations

import json
import platform
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import treeplay
from treeplay.device.host import HostDevice
from treeplay.lower.compiler import find_compiler
from treeplay.plan.choose import choose
from treeplay.settings import Settings, settings

_GPU = "this version records on the CPU only; programs with CUDA tensors run eagerly"


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Say what is installed, and how programs will be lowered on this machine."""
    facts = gather()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    Console().print(as_table(facts))


def gather() -> dict[str, dict[str, Any]]:
    """All facts as plain values, by section."""
    compiler = find_compiler()
    plan = choose(wanted="auto", compiler=compiler.path, shared=(), folded=())
    return {
        "versions": {
            "treeplay": treeplay.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.platform(terse=True),
        },
        "cpu": HostDevice().facts(),
        "cuda": _cuda(),
        "compiler": {"path": compiler.path, "why": compiler.why},
        "lowering": {"lowering": plan.lowerings[0], "why": plan.why, "fallbacks": list(plan.lowerings[1:])},
        "settings": {name: getattr(settings, name) for name in Settings.__slots__},
    }


def _cuda() -> dict[str, Any]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "built for": torch.version.cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(count)],
        "recording": _GPU,
    }


def as_table(facts: dict[str, dict[str, Any]]) -> Table:
    """The facts, one section after the other."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for section, rows in facts.items():
        for index, (name, value) in enumerate(rows.items()):
            is_last = index == len(rows) - 1
            table.add_row("" if index else section, name, _shown(value), end_section=is_last)
    return table


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)

"""`treeplay doctor`: what is installed, what this machine is, and how programs will be lowered on it."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

import treeplay
from treeplay import torch_seam
from treeplay.cli.devices import why_no_cuda
from treeplay.codegen.compiler import find_compiler, find_gpu_compiler
from treeplay.device.cuda.nodes.calls import is_available
from treeplay.device.host import HostDevice
from treeplay.plan.choose import choose
from treeplay.settings import Settings, settings

_DRIVER = Path("/proc/driver/nvidia/version")
_PATCHED = "patched into the launch"
_COPIED = (
    "copied, not patched: the NVIDIA driver's library lacks calls that treeplay changes graphs with; update the driver"
)


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
    plan = choose(wanted="auto", compiler=compiler.path)
    return {
        "versions": {
            "treeplay": treeplay.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.platform(terse=True),
        },
        "torch's private parts": _private_parts(),
        "cpu": HostDevice().facts(),
        "cuda": _cuda(),
        "compiler": {"path": compiler.path, "why": compiler.why},
        "lowering": {"lowering": plan.lowerings[0], "why": plan.why, "fallbacks": list(plan.lowerings[1:])},
        "settings": {name: getattr(settings, name) for name in Settings.__slots__},
    }


def _cuda() -> dict[str, Any]:
    """What there is for recording on GPUs, and what is lost without the parts that are not there."""
    missing = why_no_cuda()
    found: dict[str, Any] = {"available": missing is None, "built for": torch.version.cuda}
    if missing is not None:
        return {**found, "why not": missing}
    compiler = find_gpu_compiler()
    plan = choose(wanted="auto", compiler=compiler.path)
    return {
        **found,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "driver": _driver(),
        "Triton": _version("triton"),
        "lowering": f"{plan.lowerings[0]}: {plan.why if compiler.path else compiler.why}",
        "inputs that move": _PATCHED if is_available() else _COPIED,
    }


def _private_parts() -> dict[str, Any]:
    """Whether this torch has what treeplay uses of it without a public name; what each area lacks, if it lacks any."""
    lacking = {area: missing for area, missing in torch_seam.probe().items() if missing is not None}
    return {"complete": not lacking, "tested with": f"torch {torch_seam.WORKS_WITH}", **lacking}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """The NVIDIA driver's version, where the system tells it."""
    try:
        words = _DRIVER.read_text(encoding="utf-8").split()
    except OSError:
        return None
    return next((word for word in words if word[0].isdigit() and "." in word), None)


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

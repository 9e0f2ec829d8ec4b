"""What treeplay costs a call behind torch.compile: `python -m benchmarks.backend_overhead`, on the CPU.

    empty      a backend that gives back the graph as it is: Dynamo's guards, and eager's operators
    aten       treeplay, operators as they are: against "empty", what treeplay itself costs
    inductor   treeplay over Inductor
    default    torch.compile as it comes

Small tensors, so that the host is what is measured; all variants in turn in one process, and differences taken round by round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from benchmarks import machine
from benchmarks.layout import for_terminal
from benchmarks.measure import quartiles, time_rounds
from treeplay.backend.compile import backend

RESULTS = machine.ROOT / "benchmarks" / "results" / "backend"
LAYERS = (1, 4, 16)
BUDGET_US = {"inference": 20.0, "training": 60.0}
"""What treeplay may cost a call above an empty backend."""

_WIDTH = 8
_ROWS = 2
HEAD = ("program", "eager", "empty", "aten", "inductor", "default", "aten − empty", "inductor − default")

Run = Callable[..., Any]


def empty(gm: torch.fx.GraphModule, inputs: Any) -> Run:
    """A backend that does nothing: the graph runs as it is."""
    forward: Run = gm.forward
    return forward


def network(layers: int) -> nn.Module:
    """A stack of small linear layers: two parameters each, for which Dynamo has guards."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.Tanh())))


def variants(layers: int, *, is_training: bool) -> dict[str, Run]:
    """The same network behind each backend, as a call that takes a batch."""
    torch.compiler.reset()
    made = {
        "eager": network(layers),
        "empty": torch.compile(network(layers), backend=empty),
        "aten": torch.compile(network(layers), backend=backend, options={"inner": "aten"}),
        "inductor": torch.compile(network(layers), backend=backend),
        "default": torch.compile(network(layers)),
    }
    return {name: _step(module) if is_training else _inference(module) for name, module in made.items()}


def _inference(module: Any) -> Run:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            out: torch.Tensor = module(x)
            return out

    return run


def _step(module: Any) -> Run:
    gradient = torch.ones(_ROWS, _WIDTH)

    def run(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = module(x)
        out.backward(gradient)
        return out

    return run


def measure(layers: int, *, is_training: bool, seconds: float) -> dict[str, Any]:
    """One program, as plain values: microseconds a call, and the two differences."""
    batches = [(torch.randn(_ROWS, _WIDTH),) for _ in range(4)]
    runs = variants(layers, is_training=is_training)
    wanted = runs["eager"](*batches[0]).detach()
    for name, run in runs.items():
        torch.testing.assert_close(run(*batches[0]).detach(), wanted, msg=lambda text, name=name: f"{name}: {text}")
    rounds = [
        {name: time * 1e6 for name, time in times.items()} for times in time_rounds(runs, batches, seconds=seconds)
    ]
    kind = "training" if is_training else "inference"
    return {
        "program": f"{kind}, {layers} layers",
        "kind": kind,
        "environment": machine.facts(),
        "rounds": len(rounds),
        "us": {name: quartiles([times[name] for times in rounds]) for name in runs},
        "above_empty_us": quartiles([times["aten"] - times["empty"] for times in rounds]),
        "above_default_us": quartiles([times["inductor"] - times["default"] for times in rounds]),
    }


def row(result: dict[str, Any]) -> tuple[str, ...]:
    """One program's cells."""
    times = [f"{result['us'][name]['median']:,.1f}" for name in HEAD[1:6]]
    differences = [
        f"{result[name]['median']:+.1f} ({result[name]['low']:+.1f} to {result[name]['high']:+.1f})"
        for name in ("above_empty_us", "above_default_us")
    ]
    return (result["program"], *times, *differences)


def over_budget(results: list[dict[str, Any]]) -> list[str]:
    """Programs in which treeplay costs more than it may, or is slower than torch.compile as it comes."""
    found = []
    for result in results:
        above, budget = result["above_empty_us"]["median"], BUDGET_US[result["kind"]]
        if above > budget:
            found.append(f"{result['program']}: {above:.1f} µs above an empty backend, allowed {budget:.0f}")
        if result["above_default_us"]["low"] > 0:
            found.append(f"{result['program']}: slower than torch.compile's default")
    return found


def main() -> int:
    """Measure, print a table, write the result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backend_overhead", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="per program")
    parser.add_argument("--out", type=Path, help="result file (default: one with today's date)")
    words = parser.parse_args()
    torch.set_num_threads(1)
    results = [
        measure(layers, is_training=is_training, seconds=words.seconds)
        for is_training in (False, True)
        for layers in LAYERS
    ]
    console = Console()
    console.print(for_terminal(HEAD, map(row, results)))
    out = words.out or RESULTS / f"overhead-cpu-{machine.facts()['date']:.10}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(results, indent=2) + "\n")
    console.print(f"written to {out}", markup=False, highlight=False, soft_wrap=True)
    problems = over_budget(results)
    for problem in problems:
        console.print(problem, style="red", markup=False, highlight=False, soft_wrap=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

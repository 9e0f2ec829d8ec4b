"""What treeplay costs a call behind torch.compile: `python -m benchmarks.backend_overhead`, on the CPU.

    empty      a backend that gives back the graph as it is: Dynamo's guards, and eager's operators
    inductor   treeplay over Inductor
    default    torch.compile as it comes

Small tensors, so that the host is what is measured: processor time of the calling thread, to which other programs on the
machine add little. All variants in turn in one process, and differences taken round by round.
What treeplay itself costs is a call less the time inside of its compiled graphs, above the same for "empty"; in training, also
less what autograd's engine takes for a single node with the same parameters whose results lie ready.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from torch import nn

from benchmarks import machine
from benchmarks.layout import for_terminal
from benchmarks.measure import quartiles
from benchmarks.outcome import told
from benchmarks.programs import Batch
from treeplay.backend.inner import boxed
from treeplay.torch_compile import backend

LAYERS = (1, 4, 16)
BUDGET_US = {"inference": 20.0, "training": 60.0}
"""What treeplay may cost a call above an empty backend."""

_WIDTH = 8
_ROWS = 2
_CALLS = 20
HEAD = ("program", "eager", "empty", "inductor", "default", "own share − empty's", "inductor − default")

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


class Watched:
    """Behind one backend, a call less the time inside of its graphs."""

    def __init__(self, make: Callable[[Watched], Any], step: Callable[[Any], Run]) -> None:
        self.inside = 0.0
        self.run = step(make(self))

    def timed(self, graph: Run) -> Run:
        """`graph`, with its time taken."""

        def call(*args: Any) -> Any:
            start = thread_time()
            results = graph(*args)
            self.inside += thread_time() - start
            return results

        return call

    def own_us(self, batch: Batch, calls: int) -> float:
        """Microseconds a call outside of graphs."""
        self.inside = 0.0
        start = thread_time()
        for _ in range(calls):
            self.run(*batch)
        return (thread_time() - start - self.inside) / calls * 1e6


def own_shares(layers: int, *, is_training: bool, batch: Batch, seconds: float) -> list[float]:
    """Round by round, what treeplay spends outside of its graphs above what an empty backend spends there."""
    torch.compiler.reset()

    def behind_treeplay(watch: Watched) -> Any:
        def inner(module: torch.fx.GraphModule, inputs: Any) -> Run:
            return watch.timed(boxed(module))

        return torch.compile(network(layers), backend=backend, options={"inner": inner})

    def behind_nothing(watch: Watched) -> Any:
        return torch.compile(network(layers), backend=lambda gm, inputs: watch.timed(gm.forward))

    # The empty backend's backward is eager's own: no part of it is the backend's. Ours is one node.
    ours = Watched(behind_treeplay, _step if is_training else _inference)
    nothing = Watched(behind_nothing, _forward if is_training else _inference)
    engine = Watched(lambda _: ready_node(layers), _step) if is_training else None
    watches = [watch for watch in (ours, nothing, engine) if watch is not None]
    for watch in watches:
        watch.own_us(batch, _CALLS)
    shares: list[float] = []
    end = thread_time() + seconds
    while len(shares) < 10 or thread_time() < end:
        own, *floors = [watch.own_us(batch, _CALLS) for watch in watches]
        shares.append(own - sum(floors))
    return shares


def ready_node(layers: int) -> Run:
    """A call that gives a ready result, whose one node in autograd gives a ready gradient for each parameter."""
    parameters = list(network(layers).parameters())
    result = torch.ones(_ROWS, _WIDTH)
    # The gradient of a weight is a transposed product, in eager too: adding it up takes longer than a plain one.
    gradients = [torch.ones_like(parameter).t() for parameter in parameters]

    class Ready(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
            return result.detach()

        @staticmethod
        def backward(ctx: Any, *_: torch.Tensor) -> tuple[Any, ...]:
            return (None, *gradients)

    return lambda x: Ready.apply(x, *parameters)


def time_rounds(runs: dict[str, Run], batch: Batch, *, seconds: float) -> list[dict[str, float]]:
    """Microseconds of a call of each variant, round by round."""
    for run in runs.values():
        _time_us(run, batch)
    rounds: list[dict[str, float]] = []
    end = thread_time() + seconds
    while len(rounds) < 10 or thread_time() < end:
        rounds.append({name: _time_us(run, batch) for name, run in runs.items()})
    return rounds


def _time_us(run: Run, batch: Batch) -> float:
    start = thread_time()
    for _ in range(_CALLS):
        run(*batch)
    return (thread_time() - start) / _CALLS * 1e6


def _forward(module: Any) -> Run:
    return lambda x: module(x)


def measure(layers: int, *, is_training: bool, seconds: float) -> dict[str, Any]:
    """One program, as plain values: microseconds a call, and the two differences."""
    batches = [(torch.randn(_ROWS, _WIDTH),) for _ in range(4)]
    runs = variants(layers, is_training=is_training)
    wanted = runs["eager"](*batches[0]).detach()
    for name, run in runs.items():
        torch.testing.assert_close(run(*batches[0]).detach(), wanted, msg=lambda text, name=name: f"{name}: {text}")
    rounds = time_rounds(runs, batches[0], seconds=seconds)
    kind = "training" if is_training else "inference"
    return {
        "program": f"{kind}, {layers} layers",
        "kind": kind,
        "environment": {**machine.facts(), "load": os.getloadavg()[0]},
        "rounds": len(rounds),
        "us": {name: quartiles([times[name] for times in rounds]) for name in runs},
        "above_empty_us": quartiles(own_shares(layers, is_training=is_training, batch=batches[0], seconds=seconds / 2)),
        "above_default_us": quartiles([times["inductor"] - times["default"] for times in rounds]),
    }


def row(result: dict[str, Any]) -> tuple[str, ...]:
    """One program's cells."""
    times = [f"{result['us'][name]['median']:,.1f}" for name in HEAD[1:5]]
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
    return told(results, for_terminal(HEAD, map(row, results)), over_budget(results), name="overhead", out=words.out)


if __name__ == "__main__":
    sys.exit(main())

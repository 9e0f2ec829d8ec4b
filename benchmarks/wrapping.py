"""What a wrapper adds to a call of its graph: `python -m benchmarks.wrapping [--out FILE.json]`.

inner            the graph's stand-in, called with one list
treeplay         the generated function around it
torch            torch's own ahead-of-time wrapper around it
bare node        a hand-written `torch.autograd.Function` around it, with one saved tensor

The stand-ins return tensors made before, or the least operators that give fresh ones, so that only wrapping is measured.
All variants run in turn in each round. A time is processor time of the thread, the least over rounds, in microseconds per
call: what a call takes when nothing else runs. Medians are noted beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition

from benchmarks import machine
from treeplay.wrap.aot import Compilers, wrap_function

Call = Callable[[], Any]
_CALLS = 300
_BUDGETS_US = {"inference": 0.4, "forward": 2.0, "forward and backward": 8.0}


def boxed(module: Any, inputs: Any) -> Callable[[list[Any]], Any]:
    return lambda args: module.forward(*args)


def cut(graph: Any, inputs: Any, **options: Any) -> Any:
    options.pop("static_lifetime_input_indices", None)
    return default_partition(graph, inputs, **options)


def stand_in(results: Sequence[Any]) -> Callable[..., Any]:
    """A compiler whose graphs do nothing: their results were made before."""

    def compiler(module: Any, inputs: Any) -> Callable[[list[Any]], Any]:
        def run(args: list[Any]) -> Any:
            args.clear()
            return results

        return run

    return compiler


def torch_boxed(compiler: Callable[..., Any]) -> Callable[..., Any]:
    def compile_boxed(module: Any, inputs: Any) -> Any:
        run = compiler(module, inputs)
        run._boxed_call = True
        return run

    return compile_boxed


def inference() -> dict[str, Call]:
    """A function of two arguments, and a graph that costs next to nothing."""

    def add(x: Any, y: Any) -> list[Any]:
        return [x + y]

    x, y = torch.randn(4), torch.randn(4)
    compiler = stand_in((x + y,))
    inner = compiler(None, None)
    compilers = Compilers(boxed, boxed, compiler, cut)
    ours = wrap_function(add, [x, y], compilers)
    torchs = aot_function(add, torch_boxed(compiler), inference_compiler=torch_boxed(compiler))
    torchs(x, y)
    return {"inner": lambda: inner([x, y]), "treeplay": lambda: ours([x, y]), "torch": lambda: torchs(x, y)}


class Bare(torch.autograd.Function):
    """One saved tensor, nothing else."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (saved,) = ctx.saved_tensors
        return gradient * saved


class Squared(Bare):
    """The same, as a program."""


def training() -> tuple[dict[str, Call], dict[str, Call]]:
    """One saved tensor, one operator in each direction: forward alone, and with its backward."""

    def program(x: Any) -> list[Any]:
        return [Squared.apply(x)]

    x, gradient = torch.randn(4, requires_grad=True), torch.ones(4)

    def forward(module: Any, inputs: Any) -> Any:
        def run(args: list[Any]) -> Any:
            (value,) = args
            args.clear()
            return value * 2, value

        return run

    def backward(module: Any, inputs: Any) -> Any:
        def run(args: list[Any]) -> Any:
            saved, arrived = args
            args.clear()
            return (arrived * saved,)

        return run

    ours = wrap_function(program, [x], Compilers(forward, backward, boxed, cut))
    torchs = aot_function(program, torch_boxed(forward), torch_boxed(backward), partition_fn=default_partition)
    forwards: dict[str, Call] = {
        "bare node": lambda: Bare.apply(x),
        "treeplay": lambda: ours([x])[0],
        "torch": lambda: torchs(x)[0],
    }

    def with_backward(forward: Call) -> Call:
        return lambda: torch.autograd.grad(forward(), x, gradient)

    return forwards, {name: with_backward(forward) for name, forward in forwards.items()}


def timed(variants: dict[str, Call], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """Least and median microseconds per call of each variant."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        for _ in range(300):
            call()
    for _ in range(rounds):
        for name, call in variants.items():
            start = thread_time()
            for _ in range(_CALLS):
                call()
            times[name].append((thread_time() - start) / _CALLS * 1e6)
    least = {name: round(min(found), 3) for name, found in times.items()}
    return least, {name: round(statistics.median(found), 3) for name, found in times.items()}


def measure(rounds: int) -> dict[str, Any]:
    """All three comparisons. What a wrapper adds is its time less that of the first variant."""
    forwards, both = training()
    found: dict[str, Any] = {"environment": machine.facts(), "rounds": rounds, "calls per round": _CALLS}
    for name, variants in (("inference", inference()), ("forward", forwards), ("forward and backward", both)):
        times, medians = timed(variants, rounds)
        floor = times[next(iter(variants))]
        added = {kind: round(times[kind] - floor, 3) for kind in ("treeplay", "torch")}
        found[name] = {"us": times, "median us": medians, "added us": added, "budget us": _BUDGETS_US[name]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What a wrapper adds to a call of its graph.")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    text = json.dumps(measure(chosen.rounds), indent=2)
    print(text)
    if chosen.out is not None:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(text + "\n")


if __name__ == "__main__":
    main()

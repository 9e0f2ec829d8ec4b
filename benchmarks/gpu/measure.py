"""Measure programs in this process, one after the other: `python -m benchmarks.gpu.measure NAME … --out FOLDER`.

for each variant: make it, three first calls, three more, compare with eager, note memory
then all that are right, interleaved: host and wall time; then treeplay's growth over many calls

Each program has a file of its own. A variant that fails is noted with its error and left out. The file is written after each
stage, so that a stage which takes the process down leaves what came before it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

import treeplay
from benchmarks.gpu import machine
from benchmarks.gpu.floor import make_floor
from benchmarks.gpu.memory import Watch, growth
from benchmarks.gpu.programs import Program, find_program
from benchmarks.gpu.timing import Feed, compare, time_rounds
from benchmarks.gpu.variants import (
    SEED,
    Variant,
    make_backend,
    make_compiled,
    make_eager,
    make_reduce_overhead,
    make_treeplay,
)

VARIANTS: dict[str, Callable[[Program, torch.device], Variant]] = {
    "eager": make_eager,
    "compile": make_compiled,
    "reduce-overhead": make_reduce_overhead,
    "floor": make_floor,
    "backend": make_backend,
    "treeplay": make_treeplay,
}
_COLD = ("compile", "treeplay")  # each compiles with empty caches; the others between them find what `compile` left
_FIRST_CALLS = 3
_CHECKED_CALLS = 6
_GROWTH_CALLS = 10_000


class WrongResultError(RuntimeError):
    """A variant does not compute what eager computes: its time means nothing."""


@dataclasses.dataclass(slots=True)
class Measurement:
    """One program being measured; `found` is what goes into the file, written after each stage."""

    program: Program
    device: torch.device
    out: Path
    found: dict[str, Any]

    def save(self) -> None:
        """Write what there is."""
        self.out.write_text(json.dumps(self.found, indent=2))

    def failed(self, stage: str, error: BaseException) -> None:
        """Note an error and where in this project it came from; one that broke the GPU for this process ends it."""
        text = "".join(traceback.format_exception(error, limit=-6))
        self.found["failed"][stage] = {"error": f"{type(error).__name__}: {error}"[:2000], "traceback": text[-4000:]}
        self.save()
        if isinstance(error, torch.AcceleratorError):
            raise error


def measure(program: Program, device: torch.device, out: Path, *, names: list[str], seconds: float) -> None:
    """All about one program, into the file `out`."""
    start = perf_counter()
    found: dict[str, Any] = {"program": program.name, "title": program.title, "failed": {}}
    found |= {"environment": machine.facts(device), "tolerance": program.tolerance, "variants": {}}
    this = Measurement(program, device, out, found)
    this.save()
    torch.set_float32_matmul_precision("high" if program.precision == "tf32" else "highest")
    with torch.no_grad() if not program.is_training else contextlib.nullcontext():
        torch.manual_seed(SEED + 1)
        batches = [program.make_batch(device) for _ in range(program.inputs)]
        drain = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
        feed = Feed(batches, program.kept, drain)
        made = make_all(this, feed, names)
        time_all(this, feed, made, seconds=seconds)
        if "treeplay" in made:
            after_calls(this, feed, made["treeplay"], seconds=seconds)
    found["measured_in_seconds"] = perf_counter() - start
    this.save()


def make_all(this: Measurement, feed: Feed, names: list[str]) -> dict[str, Variant]:
    """Every variant that can be made and gives eager's results."""
    made: dict[str, Variant] = {}
    reference: list[torch.Tensor] = []
    with contextlib.ExitStack() as caches:
        for name in names:
            if name in _COLD:
                caches.close()
                caches.enter_context(empty_caches())
            try:
                made[name], results, facts = make_one(this, feed, name)
            except Exception as error:
                this.failed(name, error)
                continue
            reference = reference or results
            facts["error"] = largest_difference(results, reference)
            this.found["variants"][name] = facts
            if not facts["error"] <= this.program.tolerance:
                this.failed(name, WrongResultError(_how_wrong(results, reference, facts["error"])))
                del made[name]
            this.save()
    return made


def _how_wrong(results: list[torch.Tensor], reference: list[torch.Tensor], error: float) -> str:
    """By how much, in which calls, and the first values of each result beside eager's."""
    calls = [largest_difference([one], [other]) for one, other in zip(results, reference, strict=True)]
    first = [
        f"{float(one.flatten()[0]):.6g} for {float(other.flatten()[0]):.6g}"
        for one, other in zip(results, reference, strict=True)
    ]
    by_call = ", ".join(
        f"call {at}: {off:.1e} ({values})" for at, (off, values) in enumerate(zip(calls, first, strict=True))
    )
    return f"results are {error:.1e} of the largest value from eager's: {by_call}"


def make_one(this: Measurement, feed: Feed, name: str) -> tuple[Variant, list[torch.Tensor], dict[str, Any]]:
    """Make one variant, call it, and note what that took."""
    batches = [feed.batches[index % len(feed.batches)] for index in range(_CHECKED_CALLS)]
    watch, results = Watch(this.device), []
    watch.begin()
    start = perf_counter()
    with watch.peak("making"):
        variant = VARIANTS[name](this.program, this.device)
        for batch in batches[:_FIRST_CALLS]:
            results.append(variant.check(*batch).detach().clone())
        feed.drain()
        seconds = perf_counter() - start
    with watch.peak("running"):
        for batch in batches[_FIRST_CALLS:]:
            results.append(variant.check(*batch).detach().clone())
    plain = {key: value for key, value in variant.facts.items() if isinstance(value, (int, float, str))}
    return variant, results, {"first_calls_seconds": seconds, "memory": watch.end(), **plain}


def load_compiler(device: torch.device) -> None:
    """Import the compiler and start its workers, so that the first variant to compile does not pay for all."""
    torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))


@contextlib.contextmanager
def empty_caches() -> Iterator[None]:
    """Compiled code is kept in a folder of its own, which starts empty."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        yield


def largest_difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest difference of any two results, relative to the largest value; NaN if there is a NaN."""
    worst = 0.0
    for a, b in zip(found, expected, strict=True):
        a, b = a.double(), b.double()
        worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)))
        if not torch.isfinite(a).all():
            return float("nan")
    return worst


def time_all(this: Measurement, feed: Feed, made: dict[str, Variant], *, seconds: float) -> None:
    """Interleaved times of all variants that were made."""
    try:
        rounds = time_rounds({name: variant.call for name, variant in made.items()}, feed, seconds=seconds)
        this.found |= {"rounds": len(rounds.wall), **rounds.as_plain(), **compare(rounds)}
    except Exception as error:
        this.failed("timing", error)
    this.save()


def after_calls(this: Measurement, feed: Feed, ours: Variant, *, seconds: float) -> None:
    """What treeplay says of itself after all those calls, and whether memory stays flat over many more."""
    try:
        this.found["growth"] = growth(ours.call, feed, this.device, calls=_GROWTH_CALLS, seconds=seconds)
        program = ours.facts["program"]
        statistics = dataclasses.asdict(program.statistics())
        for recording in (one for key in statistics["keys"] for one in key["recordings"]):
            tell_shortly(recording["launch"])
        this.found["statistics"] = statistics
        # What the backend copies, where something cannot move, shows in its time only.
        launches = [dataclasses.asdict(graph.launch) for graph in treeplay.graph_reports() if graph.launch is not None]
        for launch in launches:
            tell_shortly(launch)
        this.found["backend"] = launches
    except Exception as error:
        this.failed("growth", error)


def tell_shortly(launch: dict[str, Any]) -> None:
    """Leave the tensors that are copied by name, and of the others, hundreds of them, how many there are of each kind."""
    policy = launch["policy"]
    kinds = Counter(text.split(":")[0].split(" ")[0] for text in policy.values())
    launch["policy"] = {**kinds, **{name: text for name, text in policy.items() if text.startswith("copied")}}


def main() -> None:
    """Measure programs and write a dict of each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.measure", description=measure.__doc__)
    parser.add_argument("programs", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    words = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    device = torch.device(words.device)
    load_compiler(device)
    for name in words.programs:
        out = words.out / f"{name}.json"
        measure(find_program(name), device, out, names=words.variants, seconds=words.seconds)
        forget()


def forget() -> None:
    """Drop what compilers and treeplay keep, so that the next program starts as in a fresh process."""
    treeplay.reset()
    torch.compiler.reset()
    gc.collect()


if __name__ == "__main__":
    main()

"""Measure one model in this process: `python -m benchmarks.backend.measure NAME --out FILE.json`.

for inference and for training, for each way: first calls, agreement with eager ─▶ times

Everything is computed in full precision, without TF32. Each way starts with an empty compiler and is gone before the next:
entries of several ways for one piece of code would be tried one after the other on each call. The file is written after each
way; one that fails is noted with its error.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import gc
import json
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

import treeplay
from benchmarks.backend.agreement import checked_forward, checked_training, full_precision, rounding
from benchmarks.backend.model import SIZES, Feed, Model, Size
from benchmarks.backend.ways import WAYS, Call, Way, treeplay_backend, treeplay_jit
from benchmarks.backend.zoo import MODELS, find_model
from benchmarks.measure import quartiles

Kind = Literal["inference", "training"]
KINDS: tuple[Kind, ...] = ("inference", "training")
_FEEDS = 4
_FEWEST_ROUNDS = 5
_WARNING = "treeplay"
TURN = "TREEPLAY_BENCHMARK_TURN"
"""The environment's name for a file that is locked by the process of several whose turn it is to take times."""


@dataclass(frozen=True, slots=True)
class Task:
    """What to measure of which model; `seconds` 0 checks results and takes no times."""

    model: Model
    size: Size
    device: torch.device
    ways: tuple[Way, ...]
    kinds: tuple[Kind, ...]
    seconds: float
    out: Path

    def feeds(self) -> list[Feed]:
        """The batches that calls rotate over."""
        return self.model.feeds(self.size, self.device, _FEEDS)

    def drain(self) -> None:
        """Wait until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(task: Task) -> None:
    """All about one model, into its file."""
    found: dict[str, Any] = {"model": task.model.name, "title": task.model.title, "size": task.size}
    missing = task.model.why_missing()
    found |= {"missing": missing} if missing else {"parameters": _parameters(task)}
    for kind in () if missing else task.kinds:
        found[kind] = {}
        with torch.no_grad() if kind == "inference" else contextlib.nullcontext():
            for way in task.ways:
                found[kind][way.name] = facts_of(task, way, kind)
                task.out.write_text(json.dumps(found))
    found["done"] = True
    task.out.write_text(json.dumps(found))


def facts_of(task: Task, way: Way, kind: Kind) -> dict[str, Any]:
    """A way's agreement with eager, the seconds of its first calls, and the microseconds of later ones."""
    facts: dict[str, Any] = {"error": None}
    forget()
    try:
        with _fallbacks(facts), full_precision():
            network, feeds = task.model.make(task.size, task.device, training=kind == "training"), task.feeds()
            loss = None if kind == "inference" else task.model.loss
            if way.name == "eager":
                with turn():  # the only long work of the device that is not measured
                    facts |= {"rounding": rounding(network, feeds, loss).worst}
            checked = (
                checked_forward(way, network, feeds, task.drain)
                if loss is None
                else checked_training(way, network, feeds, loss, task.drain)
            )
            found = asdict(checked.agreement)
            facts |= {"first_calls_seconds": checked.first_seconds}
            facts |= {} if way.name == "eager" else {"results": found["results"]} if loss is None else found
            if task.seconds:
                with turn():
                    facts |= {"us": quartiles([seconds * 1e6 for seconds in times(task, checked.call, feeds)])}
    except Exception as error:
        text = "".join(traceback.format_exception(error, limit=-6))
        facts |= {"error": f"{type(error).__name__}: {error}"[:2000], "traceback": text[-4000:]}
    return facts


@contextlib.contextmanager
def _fallbacks(facts: dict[str, Any]) -> Iterator[None]:
    """Note treeplay's warnings: what it did not take ran as it is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [str(item.message) for item in caught if _WARNING in str(item.message)]
    if told:
        facts["fallbacks"] = told


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait for this process's turn, where several share a device."""
    path = os.environ.get(TURN)
    if path is None:
        yield
        return
    with open(path, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def times(task: Task, call: Call, feeds: list[Feed]) -> list[float]:
    """Seconds of a call, in rounds over all feeds for about `task.seconds`."""
    found: list[float] = []
    gc.collect()
    end = time.perf_counter() + task.seconds
    while len(found) < _FEWEST_ROUNDS or time.perf_counter() < end:
        task.drain()
        start = time.perf_counter()
        for feed in feeds:
            call(feed)
        task.drain()
        found.append((time.perf_counter() - start) / len(feeds))
    return found


def forget() -> None:
    """Drop what torch.compile and treeplay keep of the way before."""
    treeplay.reset()
    torch.compiler.reset()
    gc.collect()


def _parameters(task: Task) -> int:
    return sum(parameter.numel() for parameter in task.model.make(task.size, task.device, training=False).parameters())


def ways_named(names: list[str], inner: str) -> tuple[Way, ...]:
    """The ways, treeplay's with kernels made by `inner`."""
    ours: dict[str, Callable[[], Way]] = {
        "backend": lambda: treeplay_backend(inner),
        "jit": lambda: treeplay_jit("aten" if inner == "aten" else "auto"),
    }
    return tuple(ours[name]() if name in ours else WAYS[name] for name in names)


def main() -> None:
    """Measure one model and write a dict of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backend.measure", description=measure.__doc__)
    parser.add_argument("model", choices=[model.name for model in MODELS])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="published")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--inner", choices=("inductor", "aten"), default="inductor")
    parser.add_argument("--seconds", type=float, default=3.0)
    words = parser.parse_args()
    torch.set_float32_matmul_precision("highest")
    ways, kinds = ways_named(words.ways, words.inner), tuple(words.kinds)
    device = torch.device(words.device)
    measure(Task(find_model(words.model), words.size, device, ways, kinds, words.seconds, words.out))


if __name__ == "__main__":
    main()

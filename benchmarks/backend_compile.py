"""What compiling behind torch.compile costs, beside its default: `python -m benchmarks.backend_compile`, on the CPU.

    default    torch.compile as it comes
    treeplay   torch.compile with treeplay over Inductor

Each measurement is a process of its own with empty caches: the time of the first call, or of the first training step, from
a model that is made and modules that are imported to results; what is imported while compiling counts. Kernels are compiled
one after the other. Processor time, of the C++ compiler too, to which other programs on the machine add little; the variants
in turn, and the least of all rounds.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import machine
from benchmarks.layout import for_terminal
from benchmarks.outcome import told
from treeplay.torch_compile import backend

KINDS = ("inference", "training")
VARIANTS = ("default", "treeplay")
LIMIT = 1.15
"""How much longer than the default treeplay may take."""
HEAD = ("program", "default s", "treeplay s", "ratio")


class Block(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.before, self.after = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.before(self.first(x)).relu()
        return (self.after(self.second(inside)) + x).relu()


def _layers() -> tuple[nn.Module, torch.Tensor]:
    layers = (layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU()))
    return nn.Sequential(*layers), torch.randn(16, 64)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    begin = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    end = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(begin, *(Block(16) for _ in range(4)), end), torch.randn(4, 3, 32, 32)


def _transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 3, enable_nested_tensor=False), torch.randn(2, 32, 64)


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "MLP of 8 layers": _layers,
    "small residual network": _convolutions,
    "small transformer": _transformer,
}


def compile_once(program: str, kind: str, variant: str) -> float:
    """Seconds of processor time until the first call, or training step, is done. For a process of its own."""
    torch.manual_seed(0)
    module, x = PROGRAMS[program]()
    module.train(kind == "training")
    start = _processor_seconds()
    compiled = torch.compile(module, backend=backend) if variant == "treeplay" else torch.compile(module)
    if kind == "training":
        compiled(x).sum().backward()
    else:
        with torch.no_grad():
            compiled(x)
    return _processor_seconds() - start


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(item.ru_utime + item.ru_stime for item in used)


def in_fresh_process(program: str, kind: str, variant: str) -> float:
    """The same in a new process with an empty cache folder."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "benchmarks.backend_compile", "--once", program, kind, variant]
        done = subprocess.run(
            words, env=os.environ | fresh, cwd=machine.ROOT, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(f"{program}, {kind}, {variant} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def measure(program: str, kind: str, rounds: int) -> dict[str, Any]:
    """One program, as plain values."""
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for _ in range(rounds):
        for variant in VARIANTS:
            seconds[variant].append(round(in_fresh_process(program, kind, variant), 3))
    least = {variant: min(found) for variant, found in seconds.items()}
    return {
        "program": f"{program}, {kind}",
        "environment": {**machine.facts(), "load": os.getloadavg()[0]},
        "seconds": seconds,
        "ratio": round(least["treeplay"] / least["default"], 3),
    }


def row(result: dict[str, Any]) -> tuple[str, ...]:
    """One program's cells."""
    times = [f"{min(result['seconds'][variant]):.2f}" for variant in VARIANTS]
    return (result["program"], *times, f"{result['ratio']:.2f}")


def over_limit(results: list[dict[str, Any]]) -> list[str]:
    """Programs that take too long to compile."""
    found = [result for result in results if result["ratio"] > LIMIT]
    return [f"{result['program']}: {result['ratio']:.2f} times the default, allowed {LIMIT}" for result in found]


def main() -> int:
    """Measure, print a table, write the result file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backend_compile", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="processes per program and variant")
    parser.add_argument("--only", help="programs whose name has this in it")
    parser.add_argument("--once", nargs=3, metavar=("PROGRAM", "KIND", "VARIANT"), help="one measurement, here")
    parser.add_argument("--out", type=Path, help="result file (default: one with today's date)")
    words = parser.parse_args()
    if words.once:
        print(compile_once(*words.once))
        return 0
    chosen = [(name, kind) for name in PROGRAMS for kind in KINDS if (words.only or "") in f"{name}, {kind}"]
    results = [measure(name, kind, words.rounds) for name, kind in chosen]
    return told(
        results,
        for_terminal(HEAD, map(row, results), title="seconds to compile"),
        over_limit(results),
        name="compile",
        out=words.out,
    )


if __name__ == "__main__":
    sys.exit(main())

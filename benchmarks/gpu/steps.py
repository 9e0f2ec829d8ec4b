"""Training steps behind `torch.compile(model, backend="treeplay")` beside `reduce-overhead`, with the eager optimizer in both.

`python -m benchmarks.gpu.steps --json FILE`. Each program has a process of its own, in which the ways are interleaved. The
processes compile side by side; then they are timed one after another, each alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import treeplay
from benchmarks import machine
from benchmarks.gpu.machine import facts
from benchmarks.gpu.step_programs import step_of
from benchmarks.gpu.timing import Feed, time_rounds
from benchmarks.gpu.variants import marked
from benchmarks.measure import quartiles

WAYS = ("eager", "reduce-overhead", "backend")
PROGRAMS = (
    "resnet50",
    "resnet18",
    "gpt2",
    "vit",
    "t5",
    "bert",
    "mlp12x4096",
    "mlp16x256",
    "actor-critic",
    "autoencoder",
)
_CALLS_TO_RECORD = 12
_KEPT = 2


def measure(name: str, seconds: float) -> dict[str, Any]:
    """One program in all ways, in this process; says when it is ready, and waits until it is told to go on."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    steps = {way: step_of(name, way) for way in WAYS}
    peer, its_feeds = steps["reduce-overhead"]
    steps["reduce-overhead"] = marked(peer), its_feeds
    for step, feeds in steps.values():
        for number in range(_CALLS_TO_RECORD):
            step(*feeds[number % len(feeds)])
    torch.cuda.synchronize()
    stages = [report.launch.stage for report in treeplay.graph_reports() if report.launch is not None]
    print("ready", flush=True)
    sys.stdin.readline()
    batches: Any = steps["eager"][1]
    feed = Feed(batches, _KEPT, torch.cuda.synchronize)
    rounds = time_rounds({way: step for way, (step, _) in steps.items()}, feed, seconds=seconds)
    speedup = quartiles([times["reduce-overhead"] / times["backend"] for times in rounds.wall])
    return {"rounds": len(rounds.wall), **rounds.as_plain(), "speedup": speedup, "stages": stages}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.steps", description="Training steps on one GPU.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.work:
        print(json.dumps(measure(words.work, words.seconds)))
        return
    result: dict[str, Any] = {"environment": facts(torch.device("cuda")), "programs": {}}
    named = f"benchmarks/results/steps/cuda-{str(result['environment']['date'])[:10]}.json"
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.steps", "--seconds", str(words.seconds), "--work"]
    # Into files: a process that waits for somebody to read its warnings would never be ready.
    logs = {name: tempfile.TemporaryFile("w+") for name in words.only}  # noqa: SIM115
    running = {
        name: subprocess.Popen(
            [*command, name],
            env=dict(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=logs[name],
            text=True,
        )
        for name in words.only
    }
    for name, process in running.items():
        assert process.stdout is not None
        print(name, process.stdout.readline().strip() or "failed", flush=True)
    for name, process in running.items():
        out, _ = process.communicate("go\n")
        logs[name].seek(0)
        found = {"failed": logs[name].read()[-600:]} if process.returncode else json.loads(out.strip().splitlines()[-1])
        result["programs"][name] = found
        print(name, found.get("speedup", found), flush=True)
        machine.write_whole(result, words.json or machine.ROOT / named)  # after each: a run may be ended early


if __name__ == "__main__":
    main()

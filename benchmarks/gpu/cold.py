"""First calls on a GPU: seconds until the third and the sixth call of a training step, with empty caches.

`python -m benchmarks.gpu.cold --json FILE --jobs N`; with `--first`, the last tier is not waited for. Each measurement has a
process and a cache folder of its own; the clock starts when torch and treeplay are imported and the model is on the GPU.
`treeplay` compiles in the background: its last tier is timed too, and the steps of either tier. N processes share the machine,
so these are upper bounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

import treeplay
from benchmarks import machine
from benchmarks.gpu import models
from benchmarks.gpu.machine import facts
from benchmarks.gpu.programs import Program, find_program
from benchmarks.gpu.variants import make_compiled, make_treeplay

CALLS = 6
_MOST_SECONDS = 400
_MOST_SECONDS_WAITED = 150  # for the last tier; what the recording says of it then is told
_ON_ITS_WAY = ("in the background", "on trial")
VARIANTS = ("compile", "treeplay", "treeplay exact")


def _bert_batch(device: torch.device) -> tuple[torch.Tensor, ...]:
    return torch.randint(30522, (4, 128), device=device), torch.randn(4 * 128, 768, device=device)


PROGRAMS = (
    find_program("mlp16x256-adamw"),
    find_program("gpt6x512-adamw"),
    Program(
        name="resnet50-adamw",
        title="training step, ResNet-50, batch 4, tf32, AdamW",
        make_model=lambda: models.image_model("resnet50"),
        make_batch=lambda device: (
            torch.randn(4, 3, 224, 224, device=device),
            torch.randint(1000, (4,), device=device),
        ),
        optimizer="AdamW",
        precision="tf32",
    ),
    Program(
        name="bert-adamw",
        title="training step, BERT-base, batch 4, 128 tokens, tf32, AdamW",
        make_model=models.bert_base,
        make_batch=_bert_batch,
        optimizer="AdamW",
        loss=nn.functional.mse_loss,
        precision="tf32",
    ),
)


def measure(program: Program, variant: str, *, only_first: bool) -> dict[str, Any]:
    """One measurement, in this process."""
    device = torch.device("cuda")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = program.precision == "tf32"
    made = (make_compiled if variant == "compile" else make_treeplay)(program, device)
    treeplay.settings.tiers = "background" if variant == "treeplay" else "exact"
    batch = program.make_batch(device)
    torch.cuda.synchronize()
    start, found = perf_counter(), {}
    for number in range(1, CALLS + 1):
        made.call(*batch)
        torch.cuda.synchronize()
        if number in (3, 6):
            found[f"seconds to call {number}"] = perf_counter() - start
    found["first tier, us"] = _step_us(made.call, batch)
    jitted: Any = made.call
    if variant != "compile":
        found["recorded in, s"] = dict(_recorded(jitted).seconds)
        found["launch, s"] = dict(_recorded(jitted).launch.seconds)
    if variant == "treeplay" and not only_first:
        while (
            any(text in (told := _recorded(jitted)).tier for text in _ON_ITS_WAY)
            and perf_counter() - start < _MOST_SECONDS_WAITED
        ):
            made.call(*batch)
            torch.cuda.synchronize()
        found["seconds to the last tier"] = perf_counter() - start
        found["last tier, us"] = _step_us(made.call, batch)
        found["tier"], found["stage"] = told.tier, told.launch.stage
    return found


def _recorded(jitted: Any) -> Any:
    """The recording that serves: of a step whose first call finds other settings than the second, the second key's."""
    return next(key.recordings[-1] for key in reversed(jitted.statistics().keys) if key.recordings)


def _step_us(call: Any, batch: tuple[torch.Tensor, ...]) -> float:
    times = []
    for _ in range(30):
        start = perf_counter()
        call(*batch)
        torch.cuda.synchronize()
        times.append(perf_counter() - start)
    return median(times) * 1e6


def _apart(program: str, variant: str, *, only_first: bool) -> dict[str, Any]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="treeplay-cold-") as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.cold", "--work", program, variant]
        command += ["--first"] if only_first else []
        done = subprocess.run(
            command, env={**os.environ, **caches}, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
        )
    if done.returncode:
        return {"failed": done.stderr[-600:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.cold", description="First calls on one NVIDIA GPU.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[program.name for program in PROGRAMS])
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--first", action="store_true", help="do not wait for the last tier")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    by_name = {program.name: program for program in PROGRAMS}
    if words.work:
        print(json.dumps(measure(by_name[words.work[0]], words.work[1], only_first=words.first)))
        return
    tasks = [(name, variant) for name in words.only for variant in words.variants]
    result: dict[str, Any] = {"environment": facts(torch.device("cuda")), "jobs": words.jobs}
    named = f"benchmarks/results/first_calls/cuda-{str(result['environment']['date'])[:10]}.json"
    with ThreadPoolExecutor(words.jobs) as pool:
        begun = {pool.submit(_apart, *task, only_first=words.first): task for task in tasks}
        for done in as_completed(begun):
            (name, variant), one = begun[done], done.result()
            result.setdefault(name, {"title": by_name[name].title})[variant] = one
            print(name, variant, one, flush=True)
            machine.write_whole(result, words.json or machine.ROOT / named)  # after each: a run may be ended early


if __name__ == "__main__":
    main()

"""The memory of training steps while they are recorded, and when they are warm: each program and way in a process of its own.

`python -m benchmarks.gpu.peaks --json FILE --jobs N`. A step is forward, backward and SGD. Ways:

    eager, reduce-overhead      the peers
    jit                         `treeplay.jit` of the whole step; what serves first runs its operators, and is replaced
    jit exact                   the same with `settings.tiers = "exact"`: compiled before it is recorded
    backend                     `torch.compile(model, backend="treeplay")`, eager optimizer

"peak": the most that was reserved over the first six calls, and over all. "running": over the last six of many more, caches
emptied before. "warm": what is reserved after them, caches emptied. All count torch's memory and the scratch of recordings,
which is not torch's, and leave out addresses without memory of their own, which torch counts for a while. "used" is what the
driver counts on the whole device, with libraries and kernels: for one process at a time. With `--limit 1.3`, jit and backend
get 1.3 x what eager reserved at most, and it is told whether the step was recorded.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import treeplay
from benchmarks import machine
from benchmarks.gpu.machine import facts
from benchmarks.gpu.reserved import ReservedMemory
from benchmarks.gpu.sampler import MemorySampler
from benchmarks.gpu.step_programs import step_of
from treeplay.device.cuda.lane import lane_of
from treeplay.tree.tiers import compile_thread

WAYS = ("eager", "reduce-overhead", "jit", "jit exact", "backend")
PROGRAMS = ("resnet50", "gpt2", "vit", "t5", "bert", "mlp12x4096")
FIRST, MORE = 6, 36
_MOST_SECONDS = 400
_MOST_SECONDS_WAITED = 100.0
_MIB = 1 << 20


def measure(name: str, way: str, limit: float, *, only_first: bool) -> dict[str, Any]:
    """One measurement, in this process; `limit` in bytes, 0 for none."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    device = torch.device("cuda", 0)
    torch.ones(1, device=device)
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    with MemorySampler(uuid) as sampler:
        return _measured(name, way, limit, device, sampler, only_first=only_first)


def _measured(
    name: str, way: str, limit: float, device: torch.device, sampler: MemorySampler, *, only_first: bool
) -> dict[str, Any]:
    idle = sampler.most()
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    treeplay.settings.tiers = "exact" if way == "jit exact" else "background"
    step, feeds = step_of(name, way)
    scratch = lane_of(device).scratch
    reserved = ReservedMemory(scratch)

    def call(number: int) -> None:
        inputs, target = feeds[number % len(feeds)]
        step(inputs, target)
        reserved.look()

    for number in range(FIRST):
        call(number)
    torch.cuda.synchronize()
    found: dict[str, Any] = {"peak_mib": reserved.most // _MIB, "used_mib": (sampler.most() - idle) // _MIB}
    for number in range(0 if only_first else MORE):
        compile_thread.wait(_MOST_SECONDS_WAITED)
        call(number)
    found["peak_of_all_calls_mib"] = reserved.most // _MIB
    found["used_by_all_calls_mib"] = (sampler.most() - idle) // _MIB
    _empty()
    sampler.most()
    reserved.begin_anew()
    for number in range(FIRST):
        call(number)
    found["running_mib"] = reserved.most // _MIB
    found["used_running_mib"] = (sampler.most() - idle) // _MIB
    _empty()
    found["warm_mib"] = (torch.cuda.memory_reserved() + scratch.nbytes) // _MIB
    found["scratch_mib"] = scratch.nbytes // _MIB
    if way.startswith("jit"):
        program: Any = step
        recordings = [recording for key in program.statistics().keys for recording in key.recordings]
        found["stages"] = [recording.launch.stage for recording in recordings] or [program.explain()[:400]]
        found["lowering"] = [recording.lowering for recording in recordings]
        found["copied"] = [recording.launch.copied_bytes_per_call for recording in recordings]
        found["seconds"] = [
            {stage: round(seconds, 3) for stage, seconds in recording.launch.seconds.items()}
            for recording in recordings
        ]
    if way == "backend":
        launches = [report.launch for report in treeplay.graph_reports()]
        found["stages"] = [launch.stage for launch in launches if launch is not None]
        found["seconds"] = [
            {stage: round(seconds, 3) for stage, seconds in launch.seconds.items()} for launch in launches if launch
        ]
    return found


def _empty() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def _apart(name: str, way: str, limit: float = 0.0) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.gpu.peaks", "--work", name, way, str(limit)]
    done = subprocess.run(
        command, env=dict(os.environ), capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
    )
    if done.returncode:
        return {"failed": done.stderr[-600:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.peaks", description="Memory on one NVIDIA GPU.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--limit", type=float, default=0.0)
    parser.add_argument("--first", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.work:
        print(json.dumps(measure(words.work[0], words.work[1], float(words.work[2]), only_first=words.first)))
        return
    result: dict[str, Any] = {"environment": facts(torch.device("cuda")), "programs": {}}
    programs: dict[str, Any] = result["programs"]
    named = f"benchmarks/results/memory/cuda-{str(result['environment']['date'])[:10]}.json"
    with ThreadPoolExecutor(words.jobs) as pool:
        begun = {pool.submit(_apart, name, way): (name, way) for name in words.only for way in words.ways}
        while begun:
            done = next(as_completed(begun))
            (name, way), one = begun.pop(done), done.result()
            programs.setdefault(name, {})[way] = one
            print(name, way, one, flush=True)
            machine.write_whole(result, words.json or machine.ROOT / named)  # after each: a run may be ended early
            if words.limit and way == "eager" and "peak_mib" in one:
                limit = words.limit * one["peak_mib"] * _MIB
                begun |= {
                    pool.submit(_apart, name, other, limit): (name, f"{other}, limited") for other in ("jit", "backend")
                }


if __name__ == "__main__":
    main()

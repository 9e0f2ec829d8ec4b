"""Where a program's time on the GPU goes: treeplay's kernels beside the floor's. `python -m benchmarks.gpu.kernels NAME ...`

For looking at a program that is slower than its floor before anything is tuned. Runs under torch's profiler, so the sums are
not the benchmark's times; their differences are what to look at.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.floor import make_floor
from benchmarks.gpu.programs import find_program
from benchmarks.gpu.variants import make_treeplay

_WARM_UPS, _CALLS, _SHOWN = 6, 3, 15


def kernels_of(name: str, device: torch.device) -> None:
    """Print the kernels of one program, the floor's and treeplay's, the longest first."""
    program = find_program(name)
    torch.set_float32_matmul_precision("high" if program.precision == "tf32" else "highest")
    with contextlib.nullcontext() if program.is_training else torch.no_grad():
        batches = [program.make_batch(device) for _ in range(3)]
        for kind, make in (("floor", make_floor), ("treeplay", make_treeplay)):
            variant = make(program, device)
            for number in range(_WARM_UPS):
                variant.call(*batches[number % 3])
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as seen:
                for number in range(_CALLS):
                    variant.call(*batches[number % 3])
                torch.cuda.synchronize()
            _show(f"{name}, {kind}", seen)


def _show(title: str, seen: profile) -> None:
    counts: dict[str, int] = defaultdict(int)
    times: dict[str, float] = defaultdict(float)
    for event in seen.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            counts[event.name] += 1
            times[event.name] += event.device_time
    print(f"{title}: {sum(times.values()) / _CALLS:.0f} us in {sum(counts.values()) / _CALLS:.0f} kernels")
    for kernel, time in sorted(times.items(), key=lambda item: -item[1])[:_SHOWN]:
        print(f"  {time / _CALLS:8.1f} us {counts[kernel] / _CALLS:6.1f} x {kernel[:110]}")


def main() -> int:
    """Print the kernels of each program that is named."""
    if not torch.cuda.is_available():
        print("error: there is no CUDA device here", file=sys.stderr)
        return 2
    for name in sys.argv[1:]:
        kernels_of(name, torch.device("cuda"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

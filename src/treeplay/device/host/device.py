"""Records on the CPU.

There is no stream to capture: a lowered callable takes tensors by reference, allocates nothing but what its plan says, and
has no Python in its way, so recording it is binding it. The rules of the trace (no host reads, no shapes from data) were
enforced before, as for a GPU; whether each kernel can be captured there, only a capture shows.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from treeplay.device.host.taped import Taped, record_tape
from treeplay.device.protocol import Capturable, Recorded, Replay, Work
from treeplay.values.launch import LaunchFacts


def on_one_thread(run: Replay) -> Replay:
    """`run` with torch's threads set to one while it lasts: libraries then do not wake others for crumbs of work."""
    get_threads, set_threads = torch.get_num_threads, torch.set_num_threads

    def replay(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        threads = get_threads()
        if threads == 1:
            return run(tensors, numbers)
        try:  # Ctrl-C may come right after the next line
            set_threads(1)
            return run(tensors, numbers)
        finally:
            set_threads(threads)

    return replay


class HostStopwatch:
    """Wall time: a launch on the CPU has run when it returns."""

    def start(self) -> None:
        self._start = perf_counter()

    def stop(self) -> None:
        self._took = perf_counter() - self._start

    def seconds(self) -> float | None:
        return self._took


class HostDevice:
    """The CPU."""

    name = "cpu"

    def stopwatch(self) -> HostStopwatch:
        """What times a launch."""
        return HostStopwatch()

    def record(self, work: Work) -> Recorded:
        """Bind the work; executes nothing. Small work is replayed on the caller's thread alone.

        Opaque work is recorded at its first replay: a tape of the operators that the user's code runs.
        """
        if work.is_opaque:
            taped = Taped(work)
            return Recorded(taped, taped.facts, taped.free)
        facts = LaunchFacts(self.name, "bound", scratch_bytes=work.scratch_bytes)
        return Recorded(on_one_thread(work.run) if work.is_small else work.run, lambda: facts, lambda: None)

    def rehearse(self, body: Capturable, tensors: Sequence[torch.Tensor]) -> None:
        """Record `body` on a tape, which puts back what it writes, and drop the tape."""
        record_tape(body, tensors)

    def facts(self) -> dict[str, Any]:
        """Cores, threads and the vector instructions that torch uses."""
        return {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "vectors": torch.backends.cpu.get_cpu_capability(),
        }

"""Records on the CPU.

There is no stream to capture: a lowered callable takes tensors by reference, allocates nothing but what its plan says, and
has no Python in its way, so recording it is binding it. The rules of a recording (no host reads, no shapes from data) were
enforced by the trace and are those of CUDA.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from treeplay.device.protocol import Recorded, Replay


class HostDevice:
    """The CPU."""

    name = "cpu"

    def record(self, run: Replay, *, scratch_bytes: int) -> Recorded:
        """Bind `run`; executes nothing."""
        return Recorded(run, scratch_bytes, self.name)

    def facts(self) -> dict[str, Any]:
        """Cores, threads and the vector instructions that torch uses."""
        return {
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "vectors": torch.backends.cpu.get_cpu_capability(),
        }

"""What tests of explicit recordings share."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.backend import job
from treeplay.backend.recording.recorded import recorded_on
from treeplay.device.host import HostDevice
from treeplay.graphs import Graph, graph
from treeplay.torch_seam import allocator


def record(dev: str, body: Callable[[], Any], **options: Any) -> tuple[Graph, Any]:
    """A new recording of `body`, and what it returned."""
    recording = Graph(device=dev)
    with graph(recording, **options):
        result = body()
    return recording, result


def another_stream() -> torch.cuda.Stream:
    """A stream other than the current one: torch hands out the same few in turn."""
    streams = (torch.cuda.Stream() for _ in range(2))
    return next(stream for stream in streams if stream != torch.cuda.current_stream())


def ten_times(x: torch.Tensor) -> torch.Tensor:
    """`x + 10`, by ten additions."""
    for _ in range(10):
        x = x + 1
    return x


def reserved() -> int:
    """What the CUDA allocator holds once everything that can be given back was."""
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


def pool_bytes(pool: tuple[int, int]) -> int:
    """What the CUDA allocator holds in one pool."""
    return sum(part["total_size"] for part in allocator.allocator_state().segments_of(pool))


def on_a_tape(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, have a tape stand in for a CUDA graph behind `torch.compile`."""
    if device == "cpu":

        def recorded(run: Any, module: Any, inputs: Any, roles: Any, report: Any) -> Any:
            return recorded_on(HostDevice(), run, module, roles, report)

        monkeypatch.setattr(job, "recorded", recorded)

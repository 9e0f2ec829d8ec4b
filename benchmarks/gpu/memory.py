"""What a variant holds on the GPU: while it is made, while it runs, and whether that grows."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from benchmarks.gpu.timing import Feed
from benchmarks.gpu.variants import Call

_CHUNK = 250


@dataclass(slots=True)
class Watch:
    """Bytes beyond those in use when it was made. Reserved bytes count, since a graph's memory is free only for itself."""

    device: torch.device
    bytes: dict[str, int] = field(default_factory=dict)
    _start: dict[str, int] = field(default_factory=dict)

    def begin(self) -> None:
        """Take what is in use now as nothing. Scratch memory of libraries goes first: each variant pays for its own."""
        if self.device.type == "cuda":
            torch._C._cuda_clearCublasWorkspaces()
        self._start = _emptied(self.device)

    @contextlib.contextmanager
    def peak(self, phase: str) -> Iterator[None]:
        """Note the most that was reserved and allocated within a block."""
        if self.device.type != "cuda":
            yield
            return
        _emptied(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        torch.cuda.synchronize(self.device)
        self.bytes[f"{phase}_reserved"] = torch.cuda.max_memory_reserved(self.device) - self._start["reserved"]
        self.bytes[f"{phase}_allocated"] = torch.cuda.max_memory_allocated(self.device) - self._start["allocated"]

    def end(self) -> dict[str, int]:
        """All that was noted, and what the whole device has less of now: graphs and handles count too."""
        now = _emptied(self.device)
        return {**self.bytes, **{f"held_{name}": now[name] - self._start[name] for name in now}}


def _emptied(device: torch.device) -> dict[str, int]:
    """Bytes in use, caches emptied first."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    return _in_use(device)


def _in_use(device: torch.device) -> dict[str, int]:
    if device.type != "cuda":
        return {}
    torch.cuda.synchronize(device)
    free, total = torch.cuda.mem_get_info(device)
    return {
        "allocated": torch.cuda.memory_allocated(device),
        "reserved": torch.cuda.memory_reserved(device),
        "device": total - free,
    }


def growth(call: Call, feed: Feed, device: torch.device, *, calls: int, seconds: float) -> dict[str, Any]:
    """By how many bytes the device's memory grows over `calls` warm calls, or as many as `seconds` allow."""
    feed.seconds(call, _CHUNK)
    gc.collect()
    before, end, done = _in_use(device), perf_counter() + seconds, 0
    while done < calls and perf_counter() < end:
        feed.seconds(call, _CHUNK)
        done += _CHUNK
    gc.collect()
    after = _in_use(device)
    return {"calls": done, **{f"grown_{name}": after[name] - before[name] for name in after}}

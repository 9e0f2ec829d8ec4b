"""What a piece of work leaves allocated, exactly: by the allocator's own count on a GPU, by the profiler's on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def left_allocated(work: Callable[[], Any], device: str) -> tuple[int, Any]:
    """Bytes of tensors that are there after `work` and were not before, and what it returned. On the CPU, what is freed counts
    if it was allocated in such a piece of work too. Nothing is collected: what goes, goes by itself."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        out = work()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - before, out
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        out = work()
    events = found.profiler.kineto_results.events()
    return sum(event.nbytes() for event in events if event.name() == "[memory]"), out

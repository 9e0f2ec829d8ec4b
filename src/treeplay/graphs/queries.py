"""Questions that need no recording: is this thread capturing, and a new pool, please."""

from __future__ import annotations

import torch

from treeplay.device.cuda.capturing.streams import is_capturing_now
from treeplay.device.host.recorder import is_recording
from treeplay.errors import UsageError
from treeplay.graphs.cuda import check_present
from treeplay.graphs.pools import new_pool
from treeplay.torch_seam.allocator import Pool


def is_current_stream_capturing() -> bool:
    """Whether a capture is under way on this thread's current stream, or in this thread on the CPU.

    Creates no CUDA context; without one the answer for CUDA is no.
    """
    return is_recording() or is_capturing_now()


def graph_pool_handle(device: torch.device | str | None = None) -> Pool:
    """A new token for recordings that may share memory. It allocates nothing, and serves on every device.

    With `device`, also checks that there is such a device to use it on.
    """
    if device is not None and torch.device(device).type == "cuda":
        check_present()
    elif device is not None and torch.device(device).type != "cpu":
        raise UsageError(f"device: recordings are made on CUDA devices and on the CPU, found {device}")
    return new_pool()

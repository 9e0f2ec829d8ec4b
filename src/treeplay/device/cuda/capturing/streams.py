"""Devices and streams of a capture: which are meant, and the one side stream per device."""

from __future__ import annotations

from functools import cache

import torch

from treeplay.device.cuda import driver
from treeplay.device.cuda.nodes.calls import is_available
from treeplay.errors import UsageError


def index_of(device: torch.device) -> int:
    """The number of a CUDA device; that of the current one if the device names none."""
    return torch.cuda.current_device() if device.index is None else device.index


def is_capturing_now() -> bool:
    """Whether this thread's current stream is in a capture. Creates no context, and without one the answer is no."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


@cache
def side_stream(index: int) -> torch.cuda.Stream:
    """The device's stream for captures, made on first use and kept as long as the process.

    One of its own: torch deals its 32 out again and again, and what others issued on it would become part of a capture."""
    if not is_available():
        return torch.cuda.Stream(device=index)
    with torch.cuda.device(index):
        return torch.cuda.ExternalStream(driver.new_stream(), device=index)


def stream_for(stream: torch.cuda.Stream | None, index: int) -> torch.cuda.Stream:
    """The stream to capture on: the one given, if it can be used, or the device's side stream."""
    if stream is None:
        return side_stream(index)
    if stream.device.index != index:
        raise UsageError(f"stream of {stream.device} given for a capture on cuda:{index}: make it on that device")
    refuse_default(stream)
    return stream


def refuse_default(stream: torch.cuda.Stream) -> None:
    """`UsageError` for a device's default stream, on which nothing can be captured."""
    if stream == torch.cuda.default_stream(stream.device):
        raise UsageError(
            f"a capture was begun on the default stream of {stream.device}, where CUDA allows none: "
            "use a side stream (`with torch.cuda.stream(torch.cuda.Stream()): ...`), or `treeplay.graphs.graph`, "
            "which makes one current"
        )

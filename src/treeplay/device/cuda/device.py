"""Records on an NVIDIA GPU: a callable is run once as it is, then captured as a CUDA graph, then launched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.cuda import is_current_stream_capturing as is_capturing

from treeplay.device.cuda.capturing.attempt import attempt_capture
from treeplay.device.cuda.capturing.streams import index_of
from treeplay.device.cuda.lane import lane_of
from treeplay.device.cuda.recording import CudaRecording
from treeplay.device.protocol import Capturable, Recorded, Stopwatch, Work
from treeplay.errors import InternalError


def _never(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
    raise InternalError("a rehearsal is never run")


class CudaDevice:
    """One GPU: the current one, if none is named."""

    def __init__(self, device: torch.device) -> None:
        self.device = torch.device("cuda", index_of(device))
        self.name = str(self.device)

    def record(self, work: Work) -> Recorded:
        """Take the work; its first replay runs it unrecorded, the second records it."""
        recording = CudaRecording(work, lane_of(self.device))
        return Recorded(
            recording,
            recording.facts,
            recording.free,
            recording.subscribe,
            recording.plain_calls,
            recording.forget_results,
        )

    def stopwatch(self) -> Stopwatch:
        """What times a launch: the time between two events on the stream of the caller."""
        return CudaStopwatch(self.device)

    def rehearse(self, body: Capturable, tensors: Sequence[torch.Tensor]) -> None:
        """Capture `body` and drop the graph: what its Python does has been seen, and nothing has run."""
        lane = lane_of(self.device)
        attempt_capture(Work("rehearsal", _never, body), tensors, lane, space=lane.address_space()).drop()

    def facts(self) -> dict[str, Any]:
        """Name, memory and compute capability."""
        found = torch.cuda.get_device_properties(self.device)
        return {"name": found.name, "memory": found.total_memory, "capability": f"{found.major}.{found.minor}"}


class CudaStopwatch:
    """Two events around a launch. Nothing is recorded while somebody captures: then the launch is no replay either."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: tuple[torch.cuda.Event, ...] = ()

    def start(self) -> None:
        self._events = () if is_capturing() else (self._noted(),)

    def stop(self) -> None:
        if self._events and not is_capturing():
            self._events = (*self._events, self._noted())

    def seconds(self) -> float | None:
        if len(self._events) < 2:
            return 0.0
        if is_capturing() or not self._events[1].query():
            return None
        return float(self._events[0].elapsed_time(self._events[1])) / 1e3

    def _noted(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

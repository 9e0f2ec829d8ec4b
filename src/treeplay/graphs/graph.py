"""`Graph`: one recording, from its capture to its replays, on whichever device it is for. `graph`: what captures a block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from time import perf_counter
from types import TracebackType
from typing import Any, NoReturn, SupportsIndex

import torch

from treeplay.device.cuda.capturing.streams import is_capturing_now
from treeplay.device.host.recorder import is_recording
from treeplay.device.modes import check_error_mode
from treeplay.errors import ArgumentError, ArgumentTypeError, UsageError
from treeplay.graphs.cuda import CudaDeviceRecording
from treeplay.graphs.device import DeviceRecording, Wish
from treeplay.graphs.host import HostRecording
from treeplay.graphs.inputs import Inputs
from treeplay.graphs.phases import RecordingPhase, check_phase
from treeplay.graphs.pools import checked_pool
from treeplay.observe.once import warn_here
from treeplay.torch_seam.allocator import Pool
from treeplay.values.graph import GraphStatistics


class Graph:
    """A piece of device work that is recorded once and replayed many times.

        g = treeplay.graphs.Graph()
        with treeplay.graphs.graph(g):
            y = x * 2                     # recorded; nothing of it shows yet
        x.fill_(3)
        g.replay()                        # y is 6 now

    `device`: "cuda", "cuda:1" or "cpu"; by default CUDA where there is one. `keep_graph`: as in torch, what was captured
    can be read and changed (`raw_cuda_graph`) before `instantiate`. `checks_inputs`: a replay raises `UsageError` if a
    tensor that the recording reads was freed; costs time in each replay. Owns its claim on the pool; outputs live on
    their own.
    """

    def __init__(
        self, keep_graph: bool = False, *, device: torch.device | str | None = None, checks_inputs: bool = False
    ) -> None:
        self._phase = RecordingPhase.EMPTY
        self._keeps_graph = keep_graph
        self._inputs = Inputs() if checks_inputs else None
        self._generators: list[torch.Generator] = []
        self._can_dump = False
        self._replays = 0
        self._capture_seconds = self._launch_seconds = 0.0
        self._recording = self._recording_on(_device(device))

    @property
    def device(self) -> torch.device:
        """Where it records; the number of a CUDA device is known from its first capture."""
        return self._recording.device

    def capture_begin(self, pool: Pool | None = None, capture_error_mode: str = "global") -> None:
        """Begin a capture on the current stream, which must not be the device's default stream.

        `graph` does this and everything around it. On the CPU, what this thread does is recorded from here on.
        """
        check_error_mode(capture_error_mode)
        wish = Wish(checked_pool(pool), error_mode=capture_error_mode)
        check_phase(self._phase, "capture_begin")
        self._forget()
        started = perf_counter()
        self._recording.begin(wish)
        # Negative until `capture_end` adds the time at which it ends.
        self._phase, self._capture_seconds = RecordingPhase.CAPTURING, -started

    def capture_end(self) -> None:
        """End the capture, on the stream on which it began. `CaptureFailed` if it is broken."""
        check_phase(self._phase, "capture_end")
        try:
            self._recording.end()
        except UsageError:  # it was not the place to end it: it goes on
            raise
        except BaseException:
            self._phase = RecordingPhase.FAILED
            raise
        self._phase = RecordingPhase.READY
        self._capture_seconds += perf_counter()

    @contextmanager
    def capturing(self, wish: Wish) -> Iterator[None]:
        """What `graph` does: capture a block with everything around it prepared and put back."""
        check_phase(self._phase, "capture_begin")
        self._forget()
        started = perf_counter()
        try:
            with self._recording.capturing(wish):
                self._phase = RecordingPhase.CAPTURING
                yield
        except BaseException:
            if self._phase is RecordingPhase.CAPTURING:
                self._phase = RecordingPhase.FAILED
            raise
        self._phase = RecordingPhase.READY
        self._capture_seconds = perf_counter() - started

    def instantiate(self) -> None:
        """Make what was captured ready to launch, again if it was changed. A replay does it where it is missing."""
        check_phase(self._phase, "instantiate")
        if not self._keeps_graph:
            raise UsageError(
                "instantiate() is for Graph(keep_graph=True): others are instantiated when their capture ends"
            )
        self._recording.instantiate()

    def replay(self) -> None:
        """Run the recorded work again, on the current stream of the recording's device, without waiting for it."""
        if self._phase is not RecordingPhase.READY:
            check_phase(self._phase, "replay")
        if self._inputs is not None:
            self._inputs.check()
        started = perf_counter()
        self._recording.replay()
        self._launch_seconds += perf_counter() - started
        self._replays += 1

    def reset(self) -> None:
        """Drop what was recorded and the claim on the pool; then it can record again. Outputs that live stay readable."""
        check_phase(self._phase, "reset")
        self._recording.reset()
        self._forget()
        self._phase = RecordingPhase.EMPTY

    def pool(self) -> Pool:
        """The token of the recording's pool, for recordings that may share its memory."""
        check_phase(self._phase, "pool")
        return self._recording.pool()

    def register_generator_state(self, generator: torch.Generator) -> None:
        """Let the recorded work draw from `generator` too; the device's default generator is always registered."""
        check_phase(self._phase, "register_generator_state")
        if not isinstance(generator, torch.Generator):
            raise ArgumentTypeError(f"generator: expected a torch.Generator, found {type(generator).__name__}")
        if generator.device.type != self.device.type:
            raise ArgumentError(f"generator: it is of {generator.device}, and the recording of {self.device}")
        self._generators.append(generator)

    def enable_debug_mode(self) -> None:
        """Allow `debug_dump`."""
        check_phase(self._phase, "enable_debug_mode")
        self._can_dump = True

    def debug_dump(self, debug_path: str | os.PathLike[str]) -> None:
        """Write the recorded nodes and edges as DOT text. Warns and writes nothing unless that was enabled before."""
        check_phase(self._phase, "debug_dump")
        if not self._can_dump:
            warn_here("debug_dump() wrote nothing: call enable_debug_mode() before the capture")
            return
        self._recording.dump(os.fspath(debug_path))

    def raw_cuda_graph(self) -> int:
        """The `cudaGraph_t`, for `Graph(keep_graph=True)` on CUDA; owned by this recording."""
        check_phase(self._phase, "raw_cuda_graph")
        if not self._keeps_graph:
            raise UsageError("raw_cuda_graph() is for Graph(keep_graph=True)")
        return int(self._raw().raw_cuda_graph())

    def raw_cuda_graph_exec(self) -> int:
        """The `cudaGraphExec_t`, once instantiated, on CUDA; owned by this recording and gone after `instantiate`."""
        check_phase(self._phase, "raw_cuda_graph_exec")
        return int(self._raw().raw_cuda_graph_exec())

    def statistics(self) -> GraphStatistics:
        """What it holds and has done, as a frozen snapshot."""
        held = self._recording.held() if self._phase is RecordingPhase.READY else None
        return GraphStatistics(
            device=str(self.device),
            phase=self._phase.value,
            nodes=held.nodes if held else None,
            pool_bytes=held.pool_bytes if held else None,
            exec_bytes=held.exec_bytes if held else None,
            replays=self._replays,
            capture_seconds=max(0.0, self._capture_seconds),
            launch_seconds=self._launch_seconds,
        )

    def __repr__(self) -> str:
        return f"<treeplay.graphs.Graph on {self.device}, {self._phase.value}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        # A copy would share what is recorded, and drop it from under the other when the first of both goes.
        raise UsageError("a recording cannot be copied or pickled: it is tied to the memory it was recorded with")

    def __del__(self) -> None:
        with suppress(Exception):  # dropping it has the effect of reset, and never raises
            if self._phase is RecordingPhase.CAPTURING:
                self._recording.abandon()
            self._recording.reset()

    def _forget(self) -> None:
        self._replays, self._capture_seconds, self._launch_seconds = 0, 0.0, 0.0
        if self._inputs is not None:
            self._inputs.clear()

    def _raw(self) -> Any:
        raw = self._recording.raw()
        if raw is None:
            raise UsageError(f"there is no CUDA graph in a recording of {self.device}")
        return raw

    def _recording_on(self, device: torch.device) -> DeviceRecording:
        if device.type == "cpu":
            return HostRecording(self._generators, self._inputs)
        return CudaDeviceRecording(device, self._generators, self._inputs, launches_later=self._keeps_graph)


class graph:
    """Capture the device work of a block into `cuda_graph`, for replays.

        with treeplay.graphs.graph(g):
            y = model(x)

    On CUDA, entering waits for the device, gives cached memory back (`collect_garbage`: after collecting Python's
    garbage, which is slow), and makes a side stream current: `stream`, or one that is kept per device. Leaving ends the
    capture and restores the stream, whatever happens. `pool`: share the memory of other recordings, which must then be
    replayed in the order of their captures. `capture_error_mode`: whose unsafe CUDA calls break the capture:
    "global" (any thread's), "thread_local" (this thread's), "relaxed" (nobody's).
    """

    def __init__(
        self,
        cuda_graph: Graph,
        pool: Pool | None = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        *,
        collect_garbage: bool = False,
    ) -> None:
        if not isinstance(cuda_graph, Graph):
            kind = f"{type(cuda_graph).__module__}.{type(cuda_graph).__name__}"
            raise ArgumentTypeError(f"cuda_graph: expected a treeplay.graphs.Graph, found {kind}")
        check_error_mode(capture_error_mode)
        self._graph = cuda_graph
        self._wish = Wish(checked_pool(pool), stream, capture_error_mode, collect_garbage)
        self._capture: AbstractContextManager[None] | None = None

    def __enter__(self) -> None:
        capture = self._graph.capturing(self._wish)
        capture.__enter__()
        self._capture = capture

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.__exit__(kind, error, trace)


def is_current_stream_capturing() -> bool:
    """Whether a capture is under way on this thread's current stream, or in this thread on the CPU.

    Creates no CUDA context; without one the answer for CUDA is no.
    """
    return is_recording() or is_capturing_now()


def _device(device: torch.device | str | None) -> torch.device:
    wanted = device if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(wanted)
    except (RuntimeError, TypeError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise ArgumentError(f"device: expected a CUDA device or the CPU, found {wanted}")
    return found

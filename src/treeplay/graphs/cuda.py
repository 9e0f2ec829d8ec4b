"""An explicit recording on a CUDA device: torch's recording object, captured and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from treeplay.device.cuda import driver
from treeplay.device.cuda.capturing import streams
from treeplay.device.cuda.capturing.capture import Capture, capturing, take_turn
from treeplay.device.turns import turns
from treeplay.errors import UsageError
from treeplay.graphs.device import CaptureHoldings, Wish, most_frequent, noting_inputs
from treeplay.graphs.inputs import Inputs
from treeplay.torch_seam import allocator
from treeplay.torch_seam.allocator import Pool


class CudaDeviceRecording:
    """`DeviceRecording` on one CUDA device.

    torch's recording is always made with `keep_graph=True`: what was captured can then be counted and dumped at any time,
    and the memory of the launchable form is measured where it is made.
    """

    def __init__(
        self,
        device: torch.device,
        generators: Sequence[torch.Generator],
        inputs: Inputs | None,
        *,
        launches_later: bool,
    ) -> None:
        self.device = device
        self._generators = generators
        self._inputs = inputs
        self._launches_later = launches_later
        self._graph: torch.cuda.CUDAGraph | None = None
        self._capture: Capture | None = None
        self._watching = noting_inputs(None)
        self._exec_bytes: int | None = None

    @contextmanager
    def capturing(self, wish: Wish) -> Iterator[None]:
        """Capture a block on a side stream."""
        graph = self._new()
        with (
            capturing(
                graph,
                device=self.device,
                pool=wish.pool,
                stream=wish.stream,
                error_mode=wish.error_mode,
                collect_garbage=wish.collect_garbage,
            ),
            noting_inputs(self._inputs),
        ):
            yield
        self._keep(graph)

    def begin(self, wish: Wish) -> None:
        """Begin on the device's current stream."""
        graph = self._new()
        index = streams.index_of(self.device)
        streams.refuse_default(torch.cuda.current_stream(index))
        take_turn()
        try:
            with torch.cuda.device(index):
                capture = Capture(
                    graph, index, pool=wish.pool, error_mode=wish.error_mode, lends_workspace=wish.pool is None
                )
                capture.begin()
                self._watching = noting_inputs(self._inputs)
                self._watching.__enter__()
        except BaseException:
            turns.give_back()
            raise
        self._graph, self._capture = graph, capture

    def end(self) -> None:
        """End on the stream of begin."""
        capture, graph = self._capture, self._graph
        if capture is None or graph is None:
            return
        if torch.cuda.current_stream(capture.index) != capture.stream:
            raise UsageError(
                f"a capture that began on {capture.stream} was ended on {torch.cuda.current_stream(capture.index)}: "
                "end it while the stream of its begin is current"
            )
        self._capture = None
        try:
            with torch.cuda.device(capture.index):
                self._watching.__exit__(None, None, None)
                capture.end()
        finally:
            turns.give_back()
        self._keep(graph)

    def abandon(self) -> None:
        """End it in whatever state it is."""
        capture, self._capture = self._capture, None
        if capture is None:
            return
        try:
            with torch.cuda.stream(capture.stream):
                self._watching.__exit__(None, None, None)
                capture.abandon()
        finally:
            turns.give_back()

    def instantiate(self) -> None:
        """Make it launchable, and measure the memory that this takes."""
        graph = self.raw()
        with turns.taken(), torch.cuda.device(self.device):
            before, _ = torch.cuda.mem_get_info()
            graph.instantiate()
            self._exec_bytes = max(0, before - torch.cuda.mem_get_info()[0])

    def replay(self) -> None:
        """Launch it on the current stream of its own device."""
        if self._exec_bytes is None:
            self.instantiate()
        self.raw().replay()

    def pool(self) -> Pool:
        """The token of its pool."""
        first, second = self.raw().pool()
        return int(first), int(second)

    def dump(self, path: str) -> None:
        """Write the driver's DOT text."""
        with open(path, "w", encoding="utf-8"):  # which tells what is wrong with a path
            driver.print_dot(self.raw().raw_cuda_graph(), path)

    def raw(self) -> torch.cuda.CUDAGraph:
        """torch's recording."""
        if self._graph is None:
            raise UsageError("there is nothing captured")
        return self._graph

    def held(self) -> CaptureHoldings:
        """Nodes by kind, and the memory of pool and launchable form."""
        pool = self.pool()
        segments = allocator.allocator_state().segments_of(pool)
        size = sum(part["total_size"] for part in segments if part["device"] == self.device.index)
        return CaptureHoldings(most_frequent(driver.node_kinds(self.raw().raw_cuda_graph())), size, self._exec_bytes)

    def reset(self) -> None:
        """Drop it, with its claim on the pool."""
        graph, self._graph, self._exec_bytes = self._graph, None, None
        if graph is not None:
            graph.reset()

    def _new(self) -> torch.cuda.CUDAGraph:
        check_present()
        self.device = torch.device("cuda", streams.index_of(self.device))
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        for generator in self._generators:
            graph.register_generator_state(generator)
        return graph

    def _keep(self, graph: torch.cuda.CUDAGraph) -> None:
        self._graph, self._exec_bytes = graph, None
        if self._launches_later:
            return
        try:
            self.instantiate()
        except BaseException:
            self.reset()
            raise


def check_present() -> None:
    """`UsageError` that says what is missing for CUDA."""
    if not torch.backends.cuda.is_built():
        raise UsageError("a recording on CUDA was begun, and this torch was built without CUDA: use device='cpu'")
    if not torch.cuda.is_available():
        raise UsageError("a recording on CUDA was begun, and no CUDA device is visible: use device='cpu'")

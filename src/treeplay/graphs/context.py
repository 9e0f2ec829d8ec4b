"""`graph`: the context manager that captures a block into a `Graph`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from treeplay.device.modes import check_error_mode
from treeplay.errors import ArgumentTypeError
from treeplay.graphs.device import Wish
from treeplay.graphs.graph import Graph
from treeplay.graphs.pools import checked_pool
from treeplay.torch_seam.allocator import Pool


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

"""What the driver knows of captures and their graphs, and torch does not tell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

from treeplay.device.cuda.contexts import here
from treeplay.device.cuda.nodes.calls import KERNEL, KINDS, MEMCPY, MEMSET, call, function
from treeplay.device.cuda.nodes.reading import handles_of, node_kind

_RELAXED = 2
_NOT_CAPTURING, _CAPTURING = 0, 1  # a broken capture has status 2
_VERBOSE = 1
_NON_BLOCKING = 1  # it does not wait for the default stream
_NAMES = {KERNEL: "kernel", MEMCPY: "memcpy", MEMSET: "memset", **KINDS}


def is_capturing(stream: int) -> bool:
    """Whether a stream is in a capture, a broken one included."""
    status = c_int()
    call("cuStreamIsCapturing", stream, byref(status))
    return status.value != _NOT_CAPTURING


def new_stream() -> int:
    """The handle of a stream on the current device that nobody else has."""
    _ = here.has_context
    stream = c_void_p()
    call("cuStreamCreate", byref(stream), _NON_BLOCKING)
    return stream.value or 0


def begin_capture(stream: int) -> None:
    """Put a stream into a capture that nothing can break."""
    call("cuStreamBeginCapture_v2", stream, _RELAXED)


def drop_capture(stream: int) -> None:
    """Take a stream out of its capture, broken or not, and drop what was captured."""
    graph = c_void_p()
    code = function("cuStreamEndCapture")(stream, byref(graph))
    if code == 0 and graph.value:
        call("cuGraphDestroy", graph)
    # Any other code tells that the capture was broken, and that it is over.


@contextmanager
def relaxed() -> Iterator[None]:
    """For a block, this thread may make any call, as destroying a graph, without breaking a capture."""
    mode = c_int(_RELAXED)
    call("cuThreadExchangeStreamCaptureMode", byref(mode))
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", byref(mode))  # `mode` holds what the first exchange replaced


def captured_graph(stream: int) -> int | None:
    """The raw graph that the capture of a stream is writing; None if it is broken or there is none."""
    status, number, graph = c_int(), c_uint64(), c_void_p()
    found = function("cuStreamGetCaptureInfo_v2")(stream, byref(status), byref(number), byref(graph), None, None)
    return graph.value if found == 0 and status.value == _CAPTURING else None


def count_nodes(graph: int) -> int:
    """How many nodes a graph has."""
    nodes = c_size_t()
    call("cuGraphGetNodes", graph, None, byref(nodes))
    return nodes.value


def node_kinds(graph: int) -> list[str]:
    """The kind of each node of a graph that exists. Asked from any thread."""
    _ = here.has_context
    return [_NAMES.get(kind, f"kind {kind}") for kind in map(node_kind, handles_of(graph))]


def print_dot(graph: int, path: str) -> None:
    """Write a graph as DOT text, with all that the driver knows of each node. Asked from any thread."""
    _ = here.has_context
    call("cuGraphDebugDotPrint", graph, path.encode(), _VERBOSE)

"""Nodes of real graphs are read as they were captured, and nothing is changed by reading."""

from __future__ import annotations

import ctypes

import pytest
import torch

from treeplay.device.cuda.nodes import calls as node_calls
from treeplay.device.cuda.nodes.reading import read_nodes
from treeplay.values.nodes import Kernel, Memcpy, Memset, Other, word_bytes


def captured(function, *inputs, stream=None):
    """The graph of a function, and what it returned."""
    stream = stream or torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        out = function(*inputs)
    return graph, out


def holds(node, tensor, offset=0):
    """Whether a buffer of a node holds the address of a tensor."""
    return any(word_bytes(tensor.data_ptr() + offset) in buffer for buffer in node.buffers)


@pytest.mark.parametrize(
    ("structure", "nbytes"),
    [
        (node_calls.KernelParams, 72),
        (node_calls.MemcpyParams, 200),
        (node_calls.MemsetParams, 40),
        (node_calls.UpdateResult, 24),
    ],
)
def test_structures_are_as_large_as_in_the_drivers_header(structure, nbytes):
    assert ctypes.sizeof(structure) == nbytes


def test_without_a_driver_nothing_is_available(monkeypatch):
    def missing(name):
        raise OSError(f"libcuda.so.1: cannot open {name}")

    monkeypatch.setattr(node_calls, "function", missing)
    assert node_calls.is_available.__wrapped__() is False


def test_a_word_is_little_endian():
    assert word_bytes(0x0102) == b"\x02\x01\0\0\0\0\0\0"


gpu = pytest.mark.gpu


@gpu
def test_the_driver_has_all_functions():
    assert node_calls.is_available()


@gpu
def test_kernels_show_their_pointers_in_order_of_creation():
    x, y = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    graph, out = captured(lambda x, y: ((x + y), (x * y)), x, y)
    first, second = read_nodes(graph.raw_cuda_graph())
    assert isinstance(first, Kernel) and "elementwise" in first.name
    for node, result in ((first, out[0]), (second, out[1])):
        assert holds(node, x) and holds(node, y) and holds(node, result)


@gpu
def test_a_packed_buffer_is_read_whole():
    x, y = (torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    graph, _ = captured(lambda x, y: x @ y, x, y)
    nodes = read_nodes(graph.raw_cuda_graph())
    packed = [node for node in nodes if isinstance(node, Kernel) and node.is_packed]
    assert packed and any(holds(node, x) and holds(node, y) for node in packed)


@gpu
def test_a_clone_is_a_memcpy_and_zeros_are_a_fill():
    x = torch.randn(1000, device="cuda")
    graph, (copy, zeros) = captured(lambda x: (x.clone(), torch.empty(1000, device="cuda").zero_()), x)
    nodes = read_nodes(graph.raw_cuda_graph())
    (memcpy,) = (node for node in nodes if isinstance(node, Memcpy))
    assert (memcpy.source, memcpy.destination) == (x.data_ptr(), copy.data_ptr())
    fill = next(node for node in nodes if not isinstance(node, Memcpy))
    assert isinstance(fill, (Memset, Kernel)) and holds(fill, zeros)


@gpu
def test_what_a_copy_from_pinned_memory_holds_is_read():
    pinned, x = torch.arange(4).pin_memory(), torch.zeros(4, dtype=torch.int64, device="cuda")
    graph, _ = captured(lambda: x.copy_(pinned, non_blocking=True))
    (node,) = read_nodes(graph.raw_cuda_graph())
    assert isinstance(node, Memcpy) and node.source_kind == "host"
    assert node.content == bytes(pinned.numpy())


@gpu
def test_events_between_streams_leave_no_opaque_node():
    x, side, stream = torch.randn(64, device="cuda"), torch.cuda.Stream(), torch.cuda.Stream()

    def function(x):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        torch.cuda.current_stream().wait_stream(side)
        return y * 2

    graph, _ = captured(function, x, stream=stream)
    assert not any(isinstance(node, Other) and node.is_opaque for node in read_nodes(graph.raw_cuda_graph()))


@gpu
def test_reading_twice_gives_equal_values_and_the_graph_still_runs():
    x = torch.randn(64, 64, device="cuda")
    graph, out = captured(lambda x: (x @ x).softmax(1).clone(), x)
    assert read_nodes(graph.raw_cuda_graph()) == read_nodes(graph.raw_cuda_graph())
    graph.replay()
    torch.testing.assert_close(out, (x @ x).softmax(1))


@gpu
def test_structures_agree_with_those_of_cuda_bindings():
    driver = pytest.importorskip("cuda.bindings.driver")
    from treeplay.device.cuda.nodes.reading import handles_of, params_of

    x = torch.randn(64, 64, device="cuda")
    graph, _ = captured(lambda x: (x + 1) @ x, x)
    for handle in handles_of(graph.raw_cuda_graph()):
        error, theirs = driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(handle))
        assert int(error) == 0
        ours = params_of(handle, node_calls.KernelParams)
        assert int(theirs.func) == (ours.func or 0)
        assert (theirs.gridDimX, theirs.blockDimY, theirs.sharedMemBytes) == (
            ours.grid[0],
            ours.block[1],
            ours.shared_bytes,
        )
        assert (theirs.kernelParams, theirs.extra) == (ours.params or 0, ours.extra or 0)

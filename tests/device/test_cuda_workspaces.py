"""Workspaces are lent, kept by recordings whose nodes mention them, and else lent again."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import torch

from support.recordings import reserved
from treeplay.device.cuda.capturing import streams
from treeplay.device.cuda.capturing.capture import capturing
from treeplay.device.cuda.capturing.workspaces import Workspace, Workspaces, holds_address, workspaces
from treeplay.errors import InternalError
from treeplay.torch_seam import allocator
from treeplay.values.nodes import GraphNode, Memset, Other

CUDA = torch.device("cuda")


@pytest.mark.parametrize("offset", [0, 1, 4, 8, 13])
@pytest.mark.parametrize("address", [0x7F79_3EA0_0000, 0x7F79_3F12_3456, 0x7F79_409F_FFFF])
def test_an_address_is_found_wherever_it_stands(address: int, offset: int) -> None:
    buffer = bytes(offset) + address.to_bytes(8, "little") + b"\x01" * 5
    assert holds_address(buffer, 0x7F79_3EA0_0000, 0x7F79_40A0_0000)


def test_other_addresses_are_not() -> None:
    start, end = 0x7F79_3EA0_0000, 0x7F79_40A0_0000
    others = (start - 1, end, start + (1 << 40), 0, (1 << 64) - 1)
    assert not any(holds_address(value.to_bytes(8, "little"), start, end) for value in others)
    assert not holds_address(b"", start, end) and not holds_address(start.to_bytes(8, "little")[:7], start, end)


@pytest.fixture
def a() -> torch.Tensor:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    a = torch.randn(512, 512, device=CUDA)
    a @ a
    torch.cuda.synchronize()
    return a


def lent() -> Workspace:
    with torch.cuda.stream(streams.side_stream(0)):
        workspaces.clear(0)
        found = workspaces.lend(0)
        allocator.clear_library_workspaces()
    assert found is not None
    return found


@pytest.mark.gpu
def test_a_workspace_that_comes_back_is_lent_again(a: torch.Tensor) -> None:
    first = lent()
    workspaces.take_back(first)
    assert lent() is first
    workspaces.take_back(first)


@pytest.mark.gpu
def test_two_at_once_are_two_and_one_spare_is_enough(a: torch.Tensor) -> None:
    first, second = lent(), lent()
    assert first.end <= second.start or second.end <= first.start
    workspaces.take_back(first)
    before = reserved()
    workspaces.take_back(second)
    assert reserved() < before and lent() is first
    workspaces.take_back(first)


@pytest.mark.gpu
def test_only_kernels_that_use_it_hold_it(a: torch.Tensor) -> None:
    for size, is_held in ((64, False), (512, True)):
        graph, b = torch.cuda.CUDAGraph(keep_graph=True), torch.randn(size, size, device=CUDA)
        b @ b
        workspace = lent()
        workspaces.take_back(workspace)
        with capturing(graph, device=CUDA):
            b @ b
        assert workspace.is_held_by(graph.raw_cuda_graph()) == is_held
        assert (lent() is workspace) != is_held
        workspaces.take_back(workspace) if not is_held else None


@pytest.mark.gpu
def test_a_kept_workspace_goes_with_its_graph(a: torch.Tensor) -> None:
    workspaces.take_back(lent())
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, device=CUDA):
        y = a @ a
    del y
    before = reserved()
    del graph
    gc.collect()
    assert reserved() <= before - (8 << 20)


@pytest.mark.gpu
def test_a_failed_capture_gives_it_back(a: torch.Tensor) -> None:
    workspace = lent()
    workspaces.take_back(workspace)
    with pytest.raises(KeyError), capturing(torch.cuda.CUDAGraph(), device=CUDA):
        a @ a
        raise KeyError("k")
    assert lent() is workspace
    workspaces.take_back(workspace)


@pytest.mark.gpu
def test_nothing_is_lent_where_the_library_is_not_in_use(a: torch.Tensor) -> None:
    allocator.clear_library_workspaces()
    fresh = Workspaces()
    fresh.clear(0)
    assert fresh.lend(0) is None
    a @ a
    fresh.clear(0)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = fresh.lend(0)
    allocator.clear_library_workspaces()
    assert found is not None
    allocator.release_pool(0, found.pool)


@pytest.mark.parametrize(
    ("nodes", "is_held"),
    [
        ((), False),
        ((Other("event record"), Memset(1 << 39, 0, 1, 1, 1, 0)), False),
        ((Other("child graph"),), True),
        ((Memset((1 << 40) + 5, 0, 1, 1, 1, 0),), True),
        (InternalError("cannot read"), True),
    ],
)
def test_what_cannot_be_read_counts_as_held(
    monkeypatch: pytest.MonkeyPatch, nodes: tuple[GraphNode, ...] | InternalError, is_held: bool
) -> None:
    def read(graph: int) -> tuple[GraphNode, ...]:
        if isinstance(nodes, InternalError):
            raise nodes
        return nodes

    monkeypatch.setattr("treeplay.device.cuda.capturing.workspaces.read_nodes", read)
    assert Workspace(0, 0, (0, 0), 1 << 40, 1 << 41).is_held_by(1) == is_held


FIRST_PRODUCT = """
import threading
import torch
from treeplay.graphs import Graph, graph

def capture():
    a, recording = torch.full((8, 8), 2.0, device="cuda"), Graph()
    with graph(recording):
        b = a @ a - 1
    recording.replay()
    print(b.sum().item())

capture()
thread = threading.Thread(target=capture)
thread.start()
thread.join()
"""


@pytest.mark.gpu
def test_the_first_product_of_a_thread_may_be_inside_of_a_capture() -> None:
    ran = subprocess.run([sys.executable, "-c", FIRST_PRODUCT], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout.split() == ["1984.0"] * 2

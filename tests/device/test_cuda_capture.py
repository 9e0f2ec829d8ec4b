"""Capturing on a CUDA device: what the stages below rely on. What users see is tested in tests/graphs."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from support.recordings import reserved
from treeplay import ArgumentError, CaptureFailed, UsageError
from treeplay.device.cuda import driver
from treeplay.device.cuda.capturing import streams
from treeplay.device.cuda.capturing.capture import capturing
from treeplay.device.turns import turns
from treeplay.torch_seam import allocator

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(1000, device=CUDA)


def test_a_body_is_captured_and_not_run(x: torch.Tensor) -> None:
    graph, s = torch.cuda.CUDAGraph(), torch.ones((), device=CUDA)
    with capturing(graph, device=CUDA):
        s.mul_(2).add_(1)
    assert s.item() == 1
    for _ in range(5):
        graph.replay()
    assert s.item() == 63


def test_captures_without_giving_caches_back_leave_them(x: torch.Tensor) -> None:
    torch.empty(1 << 24, device=CUDA)
    cached = torch.cuda.memory_reserved()
    with capturing(torch.cuda.CUDAGraph(), device=CUDA, gives_back_caches=False):
        x + 1
    assert torch.cuda.memory_reserved() >= cached
    with capturing(torch.cuda.CUDAGraph(), device=CUDA):
        x + 1
    assert torch.cuda.memory_reserved() < cached


def test_a_given_pool_is_used(x: torch.Tensor) -> None:
    first, second, pool = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    for graph in (first, second):
        with capturing(graph, device=CUDA, pool=pool):
            x + 1
    assert tuple(first.pool()) == tuple(second.pool()) == tuple(pool)


def test_a_kept_graph_is_not_instantiated(x: torch.Tensor) -> None:
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with capturing(graph, device=CUDA):
        y = x + 1
        torch.zeros(5, device=CUDA)
    assert len(driver.node_kinds(graph.raw_cuda_graph())) == 2
    graph.instantiate()
    graph.replay()
    assert y.sum().item() == 2000


@pytest.mark.parametrize("error_mode", ["thread_local", "global"])
def test_graphs_among_garbage_that_is_collected_meanwhile_break_nothing(x: torch.Tensor, error_mode: str) -> None:
    dead = torch.cuda.CUDAGraph()
    with capturing(dead, device=CUDA):
        x + 2
    cycle: list[Any] = [dead]
    cycle.append(cycle)
    alive, graph = weakref.ref(dead), torch.cuda.CUDAGraph()
    del dead, cycle
    with capturing(graph, device=CUDA, error_mode=error_mode):
        y = x * 3
        gc.collect()
        assert alive() is None
        y -= 1
    graph.replay()
    assert y.sum().item() == 2000


def test_a_failed_graph_is_empty_again(x: torch.Tensor) -> None:
    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        with pytest.raises(CaptureFailed, match="item"), capturing(graph, device=CUDA):
            y = x + torch.rand(1000, device=CUDA)
            y.sum().item()
    with capturing(graph, device=CUDA):
        y = x * 3
    graph.replay()
    assert y.sum().item() == 3000 and torch.rand(3, device=CUDA).max().item() < 1


def test_after_failures_the_pool_given_is_still_usable_and_then_goes(x: torch.Tensor) -> None:
    before, pool = reserved(), torch.cuda.graph_pool_handle()
    kept = torch.cuda.CUDAGraph()
    with capturing(kept, device=CUDA, pool=pool):
        y = x * 2
    for _ in range(3):
        with pytest.raises(KeyError), capturing(torch.cuda.CUDAGraph(), device=CUDA, pool=pool):
            x + 1
            raise KeyError("k")
    kept.replay()
    assert y.sum().item() == 2000
    del kept, y
    assert reserved() == before


def test_wrong_arguments_change_nothing(x: torch.Tensor) -> None:
    graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    with pytest.raises(ArgumentError, match="thread_local"), capturing(graph, device=CUDA, error_mode="foo"):
        pass
    with pytest.raises(UsageError, match="default"), capturing(graph, device=CUDA, stream=before):
        pass
    assert torch.cuda.current_stream() == before and not turns.is_mine


def test_somebody_elses_capture_is_not_entered(x: torch.Tensor) -> None:
    outer = torch.cuda.CUDAGraph()
    with torch.cuda.graph(outer):
        y = x + 1
        with pytest.raises(UsageError, match="somebody else"), capturing(torch.cuda.CUDAGraph(), device=CUDA):
            pass
        y = y * 2
    outer.replay()
    assert y.sum().item() == 4000


def test_backward_in_a_body_is_captured_from_its_thread(x: torch.Tensor) -> None:
    w = torch.ones(8, 8, device=CUDA, requires_grad=True)
    (w @ w).sum().backward()  # libraries make what they need
    w.grad = None
    graph = torch.cuda.CUDAGraph()
    with capturing(graph, device=CUDA):
        (w @ w * 3).sum().backward()
    graph.replay()
    assert w.grad.eq(48).all().item()


def test_workspaces_are_cleared_before_and_after(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    real = allocator.clear_library_workspaces
    monkeypatch.setattr(allocator, "clear_library_workspaces", lambda: (order.append("clear"), real()))
    with capturing(torch.cuda.CUDAGraph(), device=CUDA, gives_back_caches=False):
        order.append("body")
        x + 1
    assert order == ["clear", "body", "clear"]


def test_the_side_stream_is_none_that_torch_deals_out() -> None:
    assert streams.side_stream(0).cuda_stream not in {torch.cuda.Stream().cuda_stream for _ in range(64)}


def test_side_streams_are_kept() -> None:
    assert streams.side_stream(0) is streams.side_stream(0)
    assert streams.stream_for(None, 0) is streams.side_stream(0)
    assert streams.index_of(CUDA) == torch.cuda.current_device()

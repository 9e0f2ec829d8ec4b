"""The private parts of torch that captures use exist and behave; on builds without CUDA they are not asked."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from treeplay.torch_seam import allocator


def test_builds_are_told_apart() -> None:
    assert allocator.is_built() is (torch.version.cuda is not None)
    assert allocator.is_built() or not allocator.has_context(0)


def test_what_nothing_observes_runs_on_data_wherever_it_begins() -> None:
    x, seen = torch.ones(3), []
    library = torch.library.Library("treeplay_test_unobserved", "DEF")
    library.define("op(Tensor x) -> Tensor")

    def on_meta(fake: torch.Tensor) -> torch.Tensor:
        with allocator.unobserved():
            seen.append(x * 3 - 1)
        return torch.empty_like(fake)

    library.impl("op", on_meta, "Meta")
    with FakeTensorMode() as mode, torch.device("meta"):
        made = torch.ops.treeplay_test_unobserved.op(mode.from_tensor(x))
    assert type(seen[0]) is torch.Tensor and seen[0].tolist() == [2, 2, 2]
    assert isinstance(made, FakeTensor) and (x + 1).tolist() == [2, 2, 2]


@pytest.mark.gpu
def test_workspaces_are_freed_and_made_anew() -> None:
    a = torch.ones(64, 64, device="cuda")
    a @ a
    torch.cuda.synchronize()
    with_workspace = torch.cuda.memory_allocated()
    allocator.clear_library_workspaces()
    assert torch.cuda.memory_allocated() < with_workspace
    assert (a @ a)[0, 0].item() == 64


@pytest.mark.gpu
def test_pinned_memory_is_given_back() -> None:
    torch.empty(1 << 20, pin_memory=True)
    allocator.give_back_pinned_memory()
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] == 0


@pytest.mark.gpu
def test_allocations_can_be_taken_off_a_pool_and_the_pool_released() -> None:
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    with pytest.raises(RuntimeError):
        allocator.end_allocating_to_pool(0, pool)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool)
        torch.ones(3, device="cuda")
        allocator.end_capture(graph)
    with pytest.raises(RuntimeError):
        allocator.end_allocating_to_pool(0, pool)  # the end has done it
    graph.replay()


@pytest.mark.gpu
def test_contexts_are_seen() -> None:
    torch.ones(1, device="cuda")
    assert allocator.has_context(0)

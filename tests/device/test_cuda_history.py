"""The allocations of a capture are seen in order, and a user's own history is left alone."""

from __future__ import annotations

import sys

import pytest
import torch

from treeplay.device.cuda.capturing.history import (
    Lifetime,
    allocations,
    blocks_of,
    device_ranges,
    lifetimes_of,
)
from treeplay.relocate.memory import Spans
from treeplay.torch_seam import allocator
from treeplay.values.nodes import Allocation


def test_ranges_have_starts_and_no_ends():
    within = Spans([(100, 200), (10, 20)])
    assert [address in within for address in (9, 10, 19, 20, 99, 100, 199, 200)] == [
        False, True, True, False, False, True, True, False,
    ]  # fmt: skip
    assert 5 not in Spans([])


ENTRIES = [
    {"action": "segment_alloc", "addr": 1000, "size": 500},
    {"action": "alloc", "addr": 1000, "size": 30},
    {"action": "alloc", "addr": 5000, "size": 40},
    {"action": "free_requested", "addr": 1000, "size": 30},
    {"action": "free_completed", "addr": 1000, "size": 30},
    {"action": "alloc", "addr": 1000, "size": 700},
    {"action": "alloc", "addr": 9000, "size": 7},
]


def test_allocations_are_told_in_order():
    assert blocks_of(ENTRIES) == (
        Allocation(1000, 30),
        Allocation(5000, 40),
        Allocation(1000, 700),
        Allocation(9000, 7),
    )


def test_how_long_allocations_were_there_is_told_in_the_same_order():
    """One that another stream still uses is there until that is done, however early it is given back."""
    asked = [
        {"action": "alloc", "addr": 7000, "size": 8, "stream": 3},
        {"action": "free_requested", "addr": 7000, "size": 8, "stream": 3},
    ]
    assert lifetimes_of([*ENTRIES, *asked]) == (
        Lifetime(1, 4, 0),
        Lifetime(2, 9, 0),
        Lifetime(5, 9, 0),
        Lifetime(6, 9, 0),
        Lifetime(7, 9, 3),
    )


@pytest.mark.parametrize(("nbytes", "length"), [(0, 512), (1, 512), (512, 512), (513, 1024)])
def test_a_block_ends_where_the_allocator_rounds_it_up_to(nbytes, length):
    assert Allocation(4096, nbytes).end == 4096 + length


gpu = pytest.mark.gpu


@gpu
def test_allocations_of_a_capture_are_seen_and_others_are_not():
    x, pool, device = torch.randn(1000, device="cuda"), torch.cuda.graph_pool_handle(), torch.device("cuda", 0)
    graphs, outs = [], []
    for _ in range(2):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with allocations(device, pool) as seen:
            torch.empty(777, device="cuda")
            with torch.cuda.graph(graph, pool=pool):
                out = (x + 1) * 2
        graphs.append(graph)
        outs.append(out)
        assert [block.nbytes for block in seen.blocks or ()] == [4000, 4000]
        assert (seen.blocks or ())[1].address == out.data_ptr()
    assert outs[0].data_ptr() != outs[1].data_ptr()
    assert not allocator.is_recording_history()
    assert all(out.data_ptr() in Spans(device_ranges()) for out in outs)


@gpu
def test_a_history_that_a_user_records_is_left_alone():
    torch.cuda.memory._record_memory_history("all", context=None)
    try:
        torch.empty(100, device="cuda")
        with allocations(torch.device("cuda", 0), torch.cuda.graph_pool_handle()) as seen:
            torch.empty(100, device="cuda")
        assert seen.blocks is None
        assert allocator.is_recording_history()
        assert allocator.allocator_state().histories[0]
    finally:
        torch.cuda.memory._record_memory_history(None)


@gpu
def test_history_stops_after_a_failure():
    with pytest.raises(ValueError), allocations(torch.device("cuda", 0), torch.cuda.graph_pool_handle()):
        raise ValueError
    assert not allocator.is_recording_history()


@gpu
def test_the_numbers_of_a_pool_keep_their_references():
    while max(pool := torch.cuda.graph_pool_handle()) <= 256:  # smaller numbers are Python's own
        pass
    before = sys.getrefcount(pool[0]), sys.getrefcount(pool[1])
    for _ in range(3):
        with allocations(torch.device("cuda", 0), pool):
            torch.empty(100, device="cuda")
        allocator.allocator_state().segments_of(pool)
    assert (sys.getrefcount(pool[0]), sys.getrefcount(pool[1])) == before

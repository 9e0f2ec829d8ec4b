"""Rows G15 to G17 and G+8: tokens, whose memory is whose, and what sharing saves."""

from __future__ import annotations

import gc

import pytest
import torch

from support.recordings import pool_bytes, record, reserved
from treeplay import ArgumentTypeError
from treeplay.graphs import Graph, graph, graph_pool_handle
from treeplay.torch_seam import allocator

MIB = 1 << 20


def test_G15_tokens_are_distinct_hashable_and_allocate_nothing(dev: str) -> None:
    before = torch.cuda.memory_reserved() if dev == "cuda" else 0
    assert len({graph_pool_handle(dev) for _ in range(100)}) == 100
    assert (torch.cuda.memory_reserved() if dev == "cuda" else 0) == before


def test_G15_private_pools_differ_and_given_ones_are_taken(dev: str, x: torch.Tensor) -> None:
    a, _ = record(dev, lambda: x + 1)
    b, _ = record(dev, lambda: x + 1)
    c, _ = record(dev, lambda: x + 1, pool=a.pool())
    token = graph_pool_handle()
    d, _ = record(dev, lambda: x + 1, pool=token)
    assert a.pool() != b.pool() and c.pool() == a.pool() and d.pool() == token


def test_G15_what_is_no_token_is_refused(dev: str) -> None:
    with pytest.raises(ArgumentTypeError, match="pool: expected a token"):
        graph(Graph(device=dev), pool="mine")


def test_G16_eager_work_never_gets_the_memory_of_a_recording(dev: str) -> None:
    x = torch.ones(MIB // 4, device=dev)

    def body() -> torch.Tensor:
        y = x + 1
        y = y * 3
        return y.sum()

    recording, y = record(dev, body)
    others = [torch.full((MIB // 4,), float("nan"), device=dev) for _ in range(1000 if dev == "cuda" else 20)]
    recording.replay()
    assert float(y) == 6 * MIB // 4
    del others


def test_G16_the_memory_goes_back_with_the_last_recording_and_tensor(cuda: str) -> None:
    x = torch.ones(MIB, device=cuda)
    a, y = record(cuda, lambda: x + 1)
    pool = a.pool()
    b, z = record(cuda, lambda y=y: y * 2, pool=pool)
    del a, y
    gc.collect()
    torch.cuda.empty_cache()
    assert pool_bytes(pool) > 0
    del b
    assert float(z.numel()) == MIB and pool_bytes(pool) > 0
    del z
    reserved()
    assert pool_bytes(pool) == 0


def test_G16_side_streams_of_the_capture_allocate_from_the_same_pool(cuda: str) -> None:
    x, side = torch.ones(MIB, device=cuda), torch.cuda.Stream()

    def body() -> torch.Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = x * 2
        main.wait_stream(side)
        return y

    recording, y = record(cuda, body)
    parts = allocator.allocator_state().segments_of(recording.pool())
    assert any(p["address"] <= y.data_ptr() < p["address"] + p["total_size"] for p in parts)


def two_in(cuda: str, pools: list[tuple[int, int]]) -> int:
    """Reserved bytes after two recordings with 200 MiB of intermediates each, in these pools."""
    x = torch.ones(50 * MIB, device=cuda)
    before = reserved()
    first, a = record(cuda, lambda: (x + 1).sum(), pool=pools[0])
    second, b = record(cuda, lambda: (x * a).sum(), pool=pools[1])
    used = torch.cuda.memory_reserved() - before
    for value in (1.0, 3.0):
        x.fill_(value)
        first.replay()
        second.replay()
        total = (x + 1).sum()
        assert torch.equal(a, total) and torch.equal(b, (x * total).sum())
    return used


def test_G17_recordings_in_one_pool_reuse_each_others_dead_memory(cuda: str) -> None:
    shared = graph_pool_handle()
    one = 200 * MIB
    assert two_in(cuda, [shared, shared]) <= 1.2 * one
    assert two_in(cuda, [graph_pool_handle(), graph_pool_handle()]) >= 1.8 * one


def test_G17_recordings_in_one_pool_give_eager_numbers_in_their_order(dev: str, x: torch.Tensor) -> None:
    pool = graph_pool_handle()
    first, a = record(dev, lambda: (x + 1) * 2, pool=pool)
    second, b = record(dev, lambda: (a - 3) * 5, pool=pool)
    for value in (1.0, 2.0, 7.0):
        x.fill_(value)
        first.replay()
        second.replay()
        assert float(b[0]) == ((value + 1) * 2 - 3) * 5


def test_Gplus8_scratch_memory_of_libraries_is_not_shared(cuda: str) -> None:
    # 512 x 512 in float32: cuBLAS splits the sum and joins the parts in its workspace
    a = torch.randn(512, 512, device=cuda)
    expected = a @ a
    first, _ = record(cuda, lambda: a @ a)
    second, y = record(cuda, lambda: a @ a)
    torch.cuda.synchronize()
    del first
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.full((8 * MIB,), float("nan"), device=cuda) for _ in range(20)]
    second.replay()
    assert torch.equal(y, expected)
    del others


def test_Gplus8_eager_work_does_not_write_into_a_recordings_scratch(cuda: str) -> None:
    a = torch.randn(512, 512, device=cuda)
    expected = a @ a
    taker = record(cuda, lambda: a @ a)  # takes the spare workspace, if an earlier recording has left one
    before = reserved()
    recording, y = record(cuda, lambda: a @ a)
    assert reserved() >= before + 8 * MIB  # a workspace of its own
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            a @ a
    torch.cuda.synchronize()
    for _ in range(20):
        recording.replay()
        assert torch.equal(y, expected)
    del recording, y
    assert reserved() == before
    del taker


def test_Gplus8_recordings_that_use_scratch_memory_never_share_it(cuda: str) -> None:
    a = torch.randn(512, 512, device=cuda)
    expected = a @ a
    kept = [record(cuda, lambda: a @ a) for _ in range(4)]
    streams = [torch.cuda.Stream() for _ in kept]
    torch.cuda.synchronize()
    for _ in range(30):
        for stream, (recording, _) in zip(streams, kept, strict=True):
            with torch.cuda.stream(stream):
                recording.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(y, expected) for _, y in kept)


def test_Gplus8_a_hundred_recordings_pay_for_what_they_use(cuda: str) -> None:
    a = torch.randn(64, 64, device=cuda)
    a @ a
    before = reserved()
    kept = [record(cuda, lambda: a @ a) for _ in range(100)]
    assert torch.cuda.memory_reserved() - before < 100 * 8 * MIB
    for recording, y in kept:
        recording.replay()
        assert torch.equal(y, a @ a)


def test_Gplus8_a_hundred_recordings_in_a_pool_share_one_workspace(cuda: str) -> None:
    a, pool = torch.randn(64, 64, device=cuda), graph_pool_handle()
    before = reserved()
    kept = [record(cuda, lambda: a @ a, pool=pool) for _ in range(100)]
    assert torch.cuda.memory_reserved() - before < 100 * 8 * MIB
    for recording, y in kept:
        recording.replay()
        assert torch.equal(y, a @ a)

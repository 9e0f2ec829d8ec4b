"""Plugs fit outputs, and in a capture they keep outputs and intermediates apart."""

from __future__ import annotations

import pytest
import torch

from treeplay.device.cuda import plugs
from treeplay.device.cuda.plugs import Plugs, plan_plugs
from treeplay.values.nodes import Placed


def test_there_is_a_block_for_each_that_was_alive_up_to_the_size_of_the_largest_output():
    most_alive = {512: 3, 1024: 1, 4096: 2, 8192: 5}
    outputs = [Placed(0, 0, 400), Placed(1, 8192, 4000)]
    assert plan_plugs(most_alive, outputs).sizes == (512, 512, 512, 1024, 4096, 4096)


def test_a_limit_leaves_out_the_largest():
    assert plan_plugs({512: 1, 4096: 1}, [Placed(0, 0, 4096)], most_bytes=2000).sizes == (512,)


def test_nothing_is_planned_without_history_or_outputs():
    assert plan_plugs({}, [Placed(0, 0, 100)]) == plan_plugs({512: 1}, []) == Plugs()
    assert Plugs().place(torch.device("cpu"), seed=0).count == 0


def test_guards_fill_holes_until_one_lies_right_behind_the_block(monkeypatch):
    """|hole|....|hole|....free: the first two guards go into the holes."""
    holes, free = [(512, 512), (2048, 512)], [8192]

    class Memory:
        def __init__(self, count: int) -> None:
            hole = next((hole for hole in holes if hole[1] == count), None)
            if hole is not None:
                holes.remove(hole)
                self.address = hole[0]
            else:
                self.address = free[0]
                free[0] += count

        def data_ptr(self) -> int:
            return self.address

    made: list[Memory] = []
    monkeypatch.setattr(plugs, "_bytes", lambda count, device: made.append(Memory(count)) or made[-1])
    monkeypatch.setattr(plugs.random.Random, "randrange", lambda self, low, high: 1)
    guards = Plugs((1024, 1024)).place(torch.device("cpu"), seed=0)
    assert [memory.address for memory in made] == [512, 8192, 2048, 9216, 9728, 10752]
    assert guards.count == len(made) == 6


@pytest.mark.gpu
def test_an_output_that_would_take_an_intermediates_memory_takes_a_plug():
    from treeplay.device.cuda.history import allocations

    x, pool, device = torch.randn(1 << 16, device="cuda"), torch.cuda.graph_pool_handle(), torch.device("cuda", 0)
    offsets, kept, planned = [], [], Plugs()
    for number in range(3):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with allocations(device, pool) as seen, torch.cuda.graph(graph, pool=pool):
            guards = planned.place(device, seed=number)
            large = x.exp()
            middle = large.sum()
            del large
            out = (x[: 1 << 14] * 2) + middle
        guards.tensors.clear()
        blocks = seen.after(guards.count) or ()
        assert [block.nbytes for block in blocks] == [1 << 18, 4, 1 << 16, 1 << 16]
        offsets.append(out.data_ptr() - blocks[0].address)
        planned = planned if planned.sizes else plan_plugs(seen.most_alive, [Placed(0, out.data_ptr(), out.nbytes)])
        kept += [graph, out]
    assert 0 <= offsets[0] < 1 << 18, "the first capture reuses memory"
    assert not any(0 <= offset < 1 << 18 for offset in offsets[1:]), offsets

"""Plugs fit outputs, and in a capture they keep outputs and intermediates apart."""

from __future__ import annotations

import pytest
import torch

from treeplay.device.cuda.plugs import Plugs, plan_plugs
from treeplay.facts.nodes import Placed


def test_there_is_a_block_for_each_that_was_alive_up_to_the_size_of_the_largest_output():
    most_alive = {512: 3, 1024: 1, 4096: 2, 8192: 5}
    outputs = [Placed(0, 0, 400), Placed(1, 8192, 4000)]
    assert plan_plugs(most_alive, outputs).sizes == (512, 512, 512, 1024, 4096, 4096)


def test_a_limit_leaves_out_the_largest():
    assert plan_plugs({512: 1, 4096: 1}, [Placed(0, 0, 4096)], most_bytes=2000).sizes == (512,)


def test_nothing_is_planned_without_history_or_outputs():
    assert plan_plugs({}, [Placed(0, 0, 100)]) == plan_plugs({512: 1}, []) == Plugs()
    assert Plugs().count == 0


def test_allocations_are_counted_as_they_are_made(monkeypatch):
    made = []
    monkeypatch.setattr("treeplay.device.cuda.plugs._bytes", lambda count, device: made.append(count))
    plugs = Plugs((512, 512, 1024))
    plugs.place(torch.device("cpu"), seed=0)
    assert len(made) == plugs.count


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_an_output_that_would_take_an_intermediates_memory_takes_a_plug():
    from treeplay.device.cuda.history import allocations

    x, pool, device = torch.randn(1 << 16, device="cuda"), torch.cuda.graph_pool_handle(), torch.device("cuda", 0)
    offsets, kept, plugs = [], [], Plugs()
    for number in range(3):
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with allocations(device, pool) as seen, torch.cuda.graph(graph, pool=pool):
            guards = plugs.place(device, seed=number)
            large = x.exp()
            middle = large.sum()
            del large
            out = (x[: 1 << 14] * 2) + middle
        del guards
        blocks = seen.after(plugs.count) or ()
        assert [block.nbytes for block in blocks] == [1 << 18, 4, 1 << 16, 1 << 16]
        offsets.append(out.data_ptr() - blocks[0].address)
        plugs = plugs if plugs.sizes else plan_plugs(seen.most_alive, [Placed(0, out.data_ptr(), out.nbytes)])
        kept += [graph, out]
    assert 0 <= offsets[0] < 1 << 18, "the first capture reuses memory"
    assert not any(0 <= offset < 1 << 18 for offset in offsets[1:])

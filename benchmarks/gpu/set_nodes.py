"""What a kernel of a CUDA graph costs that was set in the instantiated graph before, and after, that was on the device.

`python -m benchmarks.gpu.set_nodes --json FILE`. Chains of element-wise kernels, each captured anew: as captured; with all its
nodes set, to what they were, before the first launch; and the same after `cuGraphUpload`. Medians of several graphs of each.
"""

from __future__ import annotations

import argparse
import statistics
from ctypes import addressof
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.gpu.machine import facts
from treeplay.device.cuda.nodes.calls import call
from treeplay.device.cuda.nodes.own import own_node
from treeplay.device.cuda.nodes.reading import handles_of

WAYS = ("as captured", "set", "uploaded, then set")
_KERNELS, _BUFFERS, _GRAPHS, _ROUNDS, _REPLAYS = 300, 8, 5, 12, 4
_ELEMENTS = (2**10, 2**18, 2**20)


def chain(elements: int) -> tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]:
    """A graph of kernels each of which reads what the one before it wrote, and the memory that they use."""
    buffers = [torch.randn(elements, device="cuda") for _ in range(_BUFFERS)]

    def work() -> None:
        for number in range(_KERNELS):
            torch.mul(buffers[number % _BUFFERS], 1.0001, out=buffers[(number + 1) % _BUFFERS])

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        work()
    graph.instantiate()
    return graph, buffers


def us_per_kernel(graph: torch.cuda.CUDAGraph) -> float:
    """The time of replays in a row, for each kernel."""
    found = []
    for _ in range(_ROUNDS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(_REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / (_REPLAYS * _KERNELS))
    return statistics.median(found)


def measure(elements: int) -> dict[str, float]:
    """Microseconds for each kernel of one size, in each way."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    kept = []  # each graph has memory of its own
    for _ in range(_GRAPHS):
        for way in WAYS:
            graph, buffers = chain(elements)
            kept.append((graph, buffers))
            executable = graph.raw_cuda_graph_exec()
            if way == WAYS[2]:
                call("cuGraphUpload", executable, torch.cuda.current_stream().cuda_stream)
            if way != WAYS[0]:
                for node in map(own_node, handles_of(graph.raw_cuda_graph())):
                    call(node.calls.set_executable, executable, node.handle, addressof(node.params))
            times[way].append(us_per_kernel(graph))
    return {way: round(statistics.median(found), 3) for way, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.set_nodes", description="Kernels that were set.")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    result: dict[str, Any] = {"environment": facts(torch.device("cuda")), "us_per_kernel": {}}
    for elements in _ELEMENTS:
        found = result["us_per_kernel"][str(elements)] = measure(elements)
        print(elements, found, flush=True)
    named = f"benchmarks/results/set_nodes/cuda-{str(result['environment']['date'])[:10]}.json"
    machine.write_whole(result, words.json or machine.ROOT / named)


if __name__ == "__main__":
    main()

"""Lowers a traced graph for a device that captures streams: its operators as they are, in order, but for those that fill masks.

Python walks the graph while a stream is captured, and never again. Numbers are elements of a vector on the device, so that
a learning rate may change; what an operator computes with them is written with tensors in their places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.fx

from treeplay.device.protocol import Births
from treeplay.lower.births import makers_of_results
from treeplay.lower.foreach import ON_LISTS
from treeplay.lower.functional import TensorsForNumbers
from treeplay.lower.in_results import GivenMemory, MemoryInResults
from treeplay.lower.lowered import Lowered, with_vector
from treeplay.lower.masked import ON_A_STREAM
from treeplay.lower.numbers import Vector, split_numbers
from treeplay.lower.numbers_together import numbers_together


def lower_for_stream(graph: torch.fx.Graph, device: torch.device) -> Lowered:
    """Make the callable that runs the operators of `graph` on the current stream of `device`."""
    numbers = split_numbers(graph)
    vector = Vector(numbers, device) if numbers.size else None
    # Values die as early as they do in eager code: what is captured reuses their memory.
    walk = TensorsForNumbers(
        graph,
        numbers,
        formulas=ON_A_STREAM | ON_LISTS,
        together=numbers_together(graph, numbers),
        makers=makers_of_results(graph),
        forgets=True,
    )

    def body(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return walk.with_vector(*tensors)  # type: ignore[no-any-return]

    in_results = MemoryInResults(graph, device, walk.runs_as_it_is)

    @contextmanager
    def tells(births: Births) -> Iterator[None]:
        with torch.no_grad():
            walk.births, walk.memory = births, in_results.make(births)
        try:
            yield
        finally:
            walk.births, walk.memory = None, GivenMemory()

    operators = sum(node.op == "call_function" for node in graph.nodes)
    return Lowered("aten", with_vector(body, vector), body=body, vector=vector, tells=tells, operators=operators)

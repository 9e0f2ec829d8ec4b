"""Shapes that change in place, where a stream is captured: results lie as they were made, and views stay as they were."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from support import assert_same, call_of
from treeplay.errors import LoweringError
from treeplay.lower.reshaped import with_reshapes_as_views
from treeplay.lower.stream import lower_for_stream
from treeplay.trace.jit import trace


def turned(x: Tensor) -> Tensor:
    y = x * 2 - 1
    y.t_()
    return y


def seen_before(x: Tensor) -> Tensor:
    y = x * 2 - 1
    z = y.detach()
    y.t_()
    return z + torch.arange(3)


def used_before_and_after(x: Tensor) -> Tensor:
    y = x * 2 - 1
    first = y + torch.arange(3)
    y.unsqueeze_(0).transpose_(1, 2).squeeze_()
    return y @ first


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("program", [turned, seen_before, used_before_and_after])
def test_results_are_those_of_the_program(program: Callable[[Tensor], Tensor], rows: int) -> None:
    x = torch.randn(rows, 3)
    graph = trace(program, call_of(x)).graph
    (result,) = graph.output_node().all_input_nodes
    given = [x if node.name == "in0" else torch.arange(3) for node in graph.find_nodes(op="placeholder")]
    body = lower_for_stream(with_reshapes_as_views(graph), torch.device("cpu")).body
    assert body is not None
    (found,) = body(given)
    assert tuple(found.shape) == result.meta["spec"].shape
    expected = program(x)
    assert_same(found, expected.t() if program is turned else expected)  # the call turns it


def test_a_graph_without_such_shapes_is_the_same() -> None:
    graph = trace(lambda x: x.t() * 2, call_of(torch.ones(2, 3))).graph
    assert with_reshapes_as_views(graph) is graph


def test_more_memory_than_there_was_is_refused() -> None:
    graph = trace(lambda x: (x * 2).resize_(9) - 1, call_of(torch.ones(2, 3))).graph
    with pytest.raises(LoweringError, match="resizes a tensor in place"):
        with_reshapes_as_views(graph)

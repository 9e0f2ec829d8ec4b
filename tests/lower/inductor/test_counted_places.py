"""What is added to places that a program counts by itself goes there, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support.compiled import compiled
from treeplay.lower.inductor.counted_places import read_places_from_memory

pytestmark = pytest.mark.compile

SIZE = 128

PROGRAMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "index_add": lambda x: x.clone().index_add_(0, torch.arange(SIZE), x.t() - 1, alpha=-0.5),
    "index_put": lambda x: torch.zeros(SIZE, SIZE).index_put((torch.arange(SIZE) // 2,), x.t() * 3, accumulate=True),
    "scatter_add": lambda x: torch.zeros(SIZE, SIZE).scatter_add(
        0, torch.arange(SIZE)[:, None].expand(SIZE, SIZE), x.t()
    ),
    "embedding": lambda x: torch.ops.aten.embedding_dense_backward(x.t(), torch.arange(SIZE), SIZE, -1, False) - 1,
    "put": lambda x: torch.zeros(SIZE, SIZE).index_put((torch.arange(SIZE).flip(0),), x.t() * 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_transposed_value_is_added_where_it_belongs(name: str) -> None:
    program = PROGRAMS[name]
    jitted: Any = treeplay.jit(program, lower="inductor", on_refusal="raise")
    for number in range(3):
        x = torch.randn(SIZE, SIZE) - number
        torch.testing.assert_close(jitted(x), program(x), rtol=1e-4, atol=1e-5)


def test_behind_torch_compile_too(fresh_dynamo: None) -> None:
    run: Any = compiled(PROGRAMS["index_add"], "inductor", dynamic=False)
    x = torch.randn(SIZE, SIZE)
    torch.testing.assert_close(run(x), PROGRAMS["index_add"](x), rtol=1e-4, atol=1e-5)


def test_places_that_an_input_says_are_left_alone() -> None:
    graph = torch.fx.Graph()
    x, places = graph.placeholder("x"), graph.placeholder("places")
    counted = graph.call_function(torch.ops.prims.iota.default, (4,))
    for node, value in ((places, torch.arange(4)), (counted, torch.arange(4))):
        node.meta["val"] = value
    put = graph.call_function(torch.ops.aten.index_put.default, (x, [places, counted], x, True))
    plain = graph.call_function(torch.ops.aten.index_put.default, (x, [counted], x))
    graph.output([put, plain])
    read_places_from_memory(graph)
    assert put.args[1][0] is places and put.args[1][1].args == (counted,)  # type: ignore[index,union-attr]
    assert plain.args[1] == [counted]

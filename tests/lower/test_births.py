"""Allocations are told, so that what lies where a result lies later is not taken for it."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from types import FunctionType

import torch

from support import call_of
from treeplay.lower.births import ResultsTold, makers_of_results, tell_results, telling
from treeplay.lower.stream import lower_for_stream
from treeplay.trace.jit import trace


class Births:
    """Counts the operators that ran, as a capture counts nodes."""

    def __init__(self) -> None:
        self.time = 0
        self.told: list[tuple[int, int]] = []
        self.begun = 0

    def begins(self) -> None:
        self.begun += 1

    def now(self) -> int:
        self.time += 1
        return self.time

    def born(self, tensor: torch.Tensor, at: int) -> None:
        self.told.append((tensor.untyped_storage().data_ptr(), at))


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_results_in_memory_of_their_own_are_told() -> None:
    births, x, out = Births(), torch.randn(3, 4), torch.empty(3, 4)
    with ResultsTold(births):
        made = x * 2 - 1
        view = made.t()
        made.add_(1)
        torch.mul(made, 3, out=out)
        least, where = torch.min(made, 0)
    assert [place for place, _ in births.told][-2:] == [address(least), address(where)]
    assert address(made) in dict(births.told) and address(view) == address(made)
    assert address(out) not in dict(births.told) and address(x) not in dict(births.told)
    assert len(births.told) == 4  # the product, the difference, and two of min


def test_results_in_lists_among_results_are_told() -> None:
    births, given, first, second = Births(), torch.ones(1), torch.ones(2), torch.ones(3)
    tell_results(births, 7, ([given],), (first, [second, given], None))
    assert births.told == [(address(first), 7), (address(second), 7)]


def test_a_higher_order_operator_is_told_as_one() -> None:
    births, x = Births(), torch.ones(3)
    with ResultsTold(births):
        (made,) = torch.ops.higher_order.invoke_subgraph(torch.fx.symbolic_trace(lambda x: (x * 2 + 1,)), "graph", x)
    assert made.tolist() == [3, 3, 3] and births.told[-1][0] == address(made)


def test_a_wrapper_tells_what_it_allocates_and_what_its_operators_return() -> None:
    def wrapper(inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        buffer = empty_strided_cuda((2, 2), (2, 1), torch.float32)  # noqa: F821
        return buffer.copy_(inputs[0]), torch.ops.aten.max_pool2d_with_indices.default(inputs[1], [2, 2])[0]

    allocate: Callable[..., torch.Tensor] = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)  # noqa: E731
    names = {"__builtins__": builtins, "empty_strided_cuda": allocate, "torch": torch}
    artifact = FunctionType(wrapper.__code__, names, "wrapper", None, wrapper.__closure__)
    births = Births()
    with telling(artifact, births):
        buffer, pooled = artifact([torch.ones(2, 2), torch.ones(1, 1, 4, 4)])
    told = dict(births.told)
    assert address(buffer) in told and address(pooled) in told
    assert names["empty_strided_cuda"] is allocate


def test_only_operators_that_may_make_the_memory_of_results_are_asked() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        large, _ = torch.topk(x * 2 - 1, 2)
        made = x.new_zeros(2).add_(3)
        return large.sub_(1).t(), made

    graph = trace(program, call_of(torch.randn(3, 4))).graph
    assert sorted(node.name for node in makers_of_results(graph)) == [
        "add__tensor",
        "new_zeros_default",
        "sub__tensor",
        "topk_default",
    ]


def test_where_it_is_not_known_which_all_are_asked() -> None:
    graph = torch.fx.symbolic_trace(lambda x: x * 2 - 1).graph
    assert makers_of_results(graph) == set(graph.nodes)


def test_of_every_operator_it_is_told_that_it_begins() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 - 1).tanh()

    births, graph = Births(), trace(program, call_of(torch.ones(3))).graph
    lowered = lower_for_stream(graph, torch.device("cpu"))
    assert lowered.tells is not None and lowered.body is not None
    with lowered.tells(births):
        (found,) = lowered.body([torch.ones(3)])
    assert births.told == [(address(found), 1)] and births.begun == 2

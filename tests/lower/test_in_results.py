"""Operators write into memory of results that are not made yet, and what they compute is what it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support import call_of
from support.births import NotedBirths
from treeplay.lower.aten import lower_aten
from treeplay.lower.in_results import MemoryInResults
from treeplay.lower.stream import lower_for_stream
from treeplay.plan.arena import plan_arena
from treeplay.trace.jit import trace
from treeplay.values.arena import ArenaPlan

CPU = torch.device("cpu")
SIZE = 128  # 64 KiB, the least that is given a place


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Addresses(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Where operators wrote their results."""

    def __init__(self) -> None:
        super().__init__()
        self.of: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.of.append((str(func.overloadpacket), address(result)))
        return result


def captured(program: Callable[..., Any], x: torch.Tensor, rewritten: set[int]) -> tuple[list[torch.Tensor], Addresses]:
    """What the operators of a program return in a capture where the results at `rewritten` stay, and where they wrote."""
    births = NotedBirths(rewritten=frozenset(rewritten))
    lowered = lower_for_stream(trace(program, call_of(x)).graph, CPU)
    assert lowered.tells is not None and lowered.body is not None
    with lowered.tells(births), Addresses() as seen:
        return list(lowered.body([x])), seen


def planned(program: Callable[..., Any], x: torch.Tensor) -> tuple[torch.fx.Graph, ArenaPlan]:
    graph = trace(program, call_of(x)).graph
    return graph, plan_arena(graph)


def test_values_that_are_not_read_any_more_lie_in_the_result() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x @ x - 1
        second = torch.sin(first) * 2
        return second.sum(), (second - x) @ x

    x = torch.randn(SIZE, SIZE)
    (total, late), seen = captured(program, x, {1})
    torch.testing.assert_close([total, late], list(program(x)))
    inside = [name for name, at in seen.of if at == address(late)]
    assert inside == ["aten.mm", "aten.sin", "aten.mm"]  # every other of a chain, and the result


def test_without_rewritten_results_operators_allocate() -> None:
    graph = trace(lambda x: (torch.sin(x) - x) @ x, call_of(torch.randn(SIZE, SIZE))).graph
    in_results = MemoryInResults(graph, CPU, lambda node: True)
    assert not in_results.make(NotedBirths()).of
    assert len(in_results.make(NotedBirths(rewritten=frozenset({0}))).of) == 2
    cached = NotedBirths(rewritten=frozenset({0}))
    cached.results_first = False
    assert not in_results.make(cached).of


def test_a_value_that_is_read_beside_the_result_does_not_lie_in_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        first = x @ x - 1
        late = first @ x
        first.add_(late)
        return late.sub_(first)

    x = torch.randn(SIZE, SIZE)
    (late,), seen = captured(program, x, {0})
    torch.testing.assert_close(late, program(x))
    assert [name for name, at in seen.of if at == address(late)] == ["aten.mm", "aten.mm", "aten.sub_"]


def test_memory_that_is_only_made_copied_or_filled_lies_in_a_result_too() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        copy = x.t().clone()
        ones = torch.full_like(x, 3.0)
        new = torch.empty_like(x).copy_(copy - ones)
        return new.to(torch.float64).t() @ x.double()

    x = torch.randn(SIZE, SIZE)
    (late,), seen = captured(program, x, {0})
    torch.testing.assert_close(late, program(x))
    assert len([name for name, at in seen.of if at == address(late)]) >= 3


def test_what_is_copied_into_a_result_is_computed_there() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        late = (torch.sin(x) - x) @ x
        return x.new_empty_strided((SIZE, SIZE), (SIZE, 1)).copy_(late)

    x = torch.randn(SIZE, SIZE)
    (late,), seen = captured(program, x, {0})
    torch.testing.assert_close(late, program(x))
    assert "aten.copy_" not in [name for name, _ in seen.of]
    assert [name for name, at in seen.of if at == address(late)] == ["aten.sin", "aten.mm"]


@pytest.mark.parametrize(
    "part",
    [
        lambda t: t.as_strided((SIZE, SIZE), (SIZE, 1), 0),
        lambda t: torch.as_strided_copy(t, (SIZE, SIZE), (SIZE, 1), 0),
        lambda t: torch.as_strided_scatter(t, t[:1] * 2, (1, SIZE), (SIZE, 1), SIZE),
        lambda t: t.t().as_strided((SIZE, SIZE), (SIZE, 1), 0),
    ],
)
def test_what_is_told_where_in_its_memory_to_begin_begins_there(part: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        a, b = x.sin(), x.cos()
        late = part(a) - 2 * part(b)
        return torch.cat([late, late]) @ x

    x = torch.randn(SIZE, SIZE)
    (late,), _ = captured(program, x, {0})
    torch.testing.assert_close(late, program(x))
    run = lower_aten(*planned(program, x)).run  # where memory is an arena, too
    torch.testing.assert_close(next(iter(run([x], []))), program(x))


OPERATORS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda a, b: a - 2 * b,
    lambda a, b: a @ b / 8,
    lambda a, b: torch.where(a > b, a, -b),
    lambda a, b: a.clone().sub_(b),
    lambda a, b: torch.full_like(a, 0.5) - b,
    lambda a, b: torch.sigmoid(a).t() - b,
    lambda a, b: a.relu() * 3 - b,
    lambda a, b: torch.empty_like(a).copy_(b).mul_(a),
    lambda a, b: a.double().sub(b).float(),
    lambda a, b: a.sub_(b) * 1,
    lambda a, b: a.new_empty_strided(b.shape, b.stride()).copy_(a @ b / 8),
    lambda a, b: (a - b).t().clone(),
    lambda a, b: (a * b - a).clone(),
    lambda a, b: torch.addmm(a, b, a, beta=0.5, alpha=0.05),
    lambda a, b: torch.cat([a[:64] * 2, b[64:] - 1]),
    lambda a, b: (a - 1).t().sub_(b).cumsum(0) / 50,
    lambda a, b: a[3:7].sub_(b[3:7]).sum() - b,
    lambda a, b: a.softmax(1).to(torch.bfloat16).float() - b,
    lambda a, b: a.clone().index_add_(0, torch.arange(SIZE), b.t(), alpha=-0.5),
    lambda a, b: a.clone().copy_(b.t()) - a.view(2, 64, SIZE).transpose(0, 1).reshape(SIZE, SIZE),
]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_programs_are_what_they_are_in_eager(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 14))
    steps = [
        (data.draw(st.sampled_from(OPERATORS)), data.draw(st.integers(0, at)), data.draw(st.integers(0, at)))
        for at in range(count)
    ]
    shown = data.draw(st.lists(st.integers(1, count), min_size=1, max_size=4, unique=True))

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [x * 1]
        for operator, one, two in steps:
            values.append(operator(values[one], values[two]))
        return tuple(values[at] for at in shown)

    x = torch.randn(SIZE, SIZE)
    found, _ = captured(program, x, data.draw(st.sets(st.integers(0, len(shown) - 1))))
    assert all(map(torch.equal, found, program(x)))

"""What may fail on values, and what a call keeps so that it can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from support.opaque import call_of
from treeplay.plan.failing import bytes_to_keep, can_fail, first_uncompiled, to_keep
from treeplay.trace.jit import trace
from treeplay.values.failing import InRange, ToKeep

indices = torch.tensor([1, 2])


def graph_of(program: Callable[..., Any], *args: Any) -> torch.fx.Graph:
    return trace(program, call_of(*args)).graph


def writing(index: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A program that writes its first argument before it looks something up in it by its second."""

    def program(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return index(x, i)

    return program


def test_a_graph_that_cannot_fail_has_nothing_to_keep() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(torch.rand(3))
        return x / 3

    assert to_keep(graph_of(program, torch.ones(3)), is_in_order=False) is None


@pytest.mark.parametrize(
    "index",
    [
        lambda x, i: x[i],
        lambda x, i: x[i[:, None].expand(2, 3)],
        lambda x, i: F.embedding(i, x[:, None]),
        lambda x, i: x.gather(0, i.long()),
        lambda x, i: x.index_add(0, i, x[:2]),
    ],
)
def test_indices_that_are_inputs_have_to_be_in_range(index: Any) -> None:
    keep = to_keep(graph_of(writing(index), torch.ones(5), indices), is_in_order=False)
    assert keep == ToKeep((0,), draws=False, unless=(InRange(1, 5),))


def test_targets_may_be_ignored() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return F.cross_entropy(x, y, ignore_index=-7)

    graph = graph_of(program, torch.ones(2, 5), indices)
    keep = to_keep(graph, is_in_order=False)
    assert keep is not None and keep.unless == (InRange(1, 5, ignored=-7),)


@pytest.mark.parametrize(
    "index",
    [
        lambda x, i: x[i + 1],
        lambda x, i: x[i.add_(1)],
        lambda x, i: x[i.clone().add_(1)],
        lambda x, i: x[(x > 0)[:5].long()],
        lambda x, i: x[:2][x.argmax().unsqueeze(0)],
        lambda x, i: x[:2][torch.max(i, i)],
        lambda x, i: x * torch.linalg.cholesky(x.diag()).sum(),
    ],
)
def test_what_is_computed_is_in_no_known_range(index: Any) -> None:
    keep = to_keep(graph_of(writing(index), torch.ones(5), indices), is_in_order=False)
    assert keep is not None and keep.written[0] == 0 and not keep.unless


@pytest.mark.parametrize(
    "index", [lambda x, i: x[x.argmax(0, True)], lambda x, i: x[x.topk(2, 0)[1]], lambda x, i: x[x.sort(dim=0)[1]]]
)
def test_positions_of_elements_are_in_range(index: Any) -> None:
    graph = graph_of(writing(lambda x, i: index(x, i) + x[i].sum()), torch.ones(5), indices)
    keep = to_keep(graph, is_in_order=False)
    assert keep is not None and keep.unless == (InRange(1, 5),)


@pytest.mark.parametrize(
    "index",
    [
        lambda x, i: x[torch.arange(3) // 2],
        lambda x, i: x[torch.zeros(2, dtype=torch.long).add_(torch.arange(2) * 2)],
        lambda x, i: F.embedding(torch.arange(5).remainder(3), x[:, None]),
        lambda x, i: x * (i // 2).sum(),
    ],
)
def test_positions_of_plain_numbers_did_not_fail_and_will_not(index: Any) -> None:
    assert to_keep(graph_of(writing(index), torch.ones(5), indices), is_in_order=False) is None


def test_bags_have_indices_and_beginnings() -> None:
    def program(x: torch.Tensor, i: torch.Tensor, begin: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        return F.embedding_bag(i, x, begin)

    keep = to_keep(graph_of(program, torch.ones(5, 2), indices, torch.tensor([0, 1])), is_in_order=False)
    assert keep is not None and keep.unless == (InRange(1, 5), InRange(2, 3))


def test_in_order_only_what_comes_before_counts() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        x.mul_(2.0)
        z = x[i]
        y.mul_(3.0)
        return z * torch.rand(2)

    graph = graph_of(program, torch.ones(5), torch.ones(4), indices)
    in_order, compiled = to_keep(graph, is_in_order=True), to_keep(graph, is_in_order=False)
    assert in_order is not None and compiled is not None
    assert (in_order.written, in_order.draws) == ((0,), False)
    assert (compiled.written, compiled.draws) == ((0, 2), True)
    assert bytes_to_keep(graph, compiled) == 36


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.linalg.inv(x.diag()),
        lambda x: (torch._assert_async(x.sum() > 0), x * 2)[1],  # type: ignore[func-returns-value]
    ],
)
def test_compiled_code_would_leave_it_out(program: Any) -> None:
    assert first_uncompiled(graph_of(program, torch.full((3,), 0.5))) is not None


@pytest.mark.parametrize(
    "program",
    [lambda x: torch.bernoulli(x), lambda x: F.binary_cross_entropy(x, x), lambda x: torch.normal(x, x)],
)
def test_compiled_code_has_a_check_of_ours(program: Any) -> None:
    graph = graph_of(program, torch.full((3,), 0.5))
    assert first_uncompiled(graph) is None and any(map(can_fail, graph.nodes))


def test_compiled_code_keeps_what_indexing_checks() -> None:
    assert first_uncompiled(graph_of(lambda x, i: F.dropout(x[i]), torch.ones(3), indices)) is None

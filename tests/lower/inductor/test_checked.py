"""The checks that compilers leave out are in the graph that they are given, for the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from treeplay.lower.inductor.checked import has_unchecked_scatter

PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "bernoulli": (torch.bernoulli, torch.tensor([0.5, 1.5])),
    "binary_cross_entropy": (lambda x: F.binary_cross_entropy(x, torch.ones(2)), torch.tensor([0.5, float("nan")])),
    "normal": (lambda x: torch.normal(0.0, x), torch.tensor([0.5, -0.5])),
    "repeat_interleave": (lambda n: torch.ones(3).repeat_interleave(n[:1].expand(3), output_size=3), torch.tensor([2])),
}


def parts() -> dict[Any, Any]:
    from treeplay.lower.inductor.own_lowerings import inductor_decompositions

    return inductor_decompositions(eager_random=False)


@pytest.mark.parametrize("what", PROGRAMS)
def test_parts_check_what_the_operator_checks(what: str) -> None:
    program, bad = PROGRAMS[what]
    good = torch.ones_like(bad)
    graph = make_fx(program, decomposition_table=parts())(good)
    assert graph(good).shape == program(good).shape
    for run in (program, graph.forward):
        with pytest.raises(RuntimeError):
            run(bad)


def test_on_another_device_the_parts_are_the_compilers_own() -> None:
    graph = make_fx(torch.bernoulli, decomposition_table=parts())(torch.ones(2, device="meta"))
    assert "_assert_async" not in graph.code


def graph_of(program: Callable[..., torch.Tensor], *args: torch.Tensor) -> torch.fx.Graph:
    return make_fx(program, decomposition_table=parts())(*args).graph


def test_a_scatter_is_checked_by_itself_where_nothing_looks_the_places_up() -> None:
    def hot(index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(3, 4).scatter(1, index[:, None], 1.0)

    def loss(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(x, index)
        return torch.autograd.grad(loss, x)[0]

    index = torch.tensor([0, 1, 3])
    assert has_unchecked_scatter(graph_of(hot, index))
    assert not has_unchecked_scatter(graph_of(loss, torch.randn(3, 4, requires_grad=True), index))

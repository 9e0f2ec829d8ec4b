"""Graphs that enter inference mode themselves."""

from __future__ import annotations

import pytest
import torch

from support import assert_same
from support.compiled import compiled


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_view_of_what_was_made_outside(requires_grad: bool) -> None:
    weight = torch.randn(3, requires_grad=requires_grad)
    total = torch.zeros(3)

    @torch.inference_mode()
    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total.add_(x)
        return weight.view(3, 1) * x - 1, x[1:], total

    ours = compiled(run)
    for _ in range(3):
        x, before = torch.randn(3), total.clone()
        found, after = ours(x), total.clone()
        total.copy_(before)
        expected = run(x)
        assert_same([*found, after], [*expected, total])
        assert [t.is_inference() for t in found] == [t.is_inference() for t in expected] == [True, False, False]
    assert not torch.is_inference_mode_enabled()


def test_the_mode_around_a_part_of_a_graph_is_left_where_it_ends() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            n = int(x.sum(0).shape[0])
        return x * n - 1

    ours = compiled(run)
    for _ in range(3):
        x, y = (torch.ones(2, 3).requires_grad_() for _ in range(2))
        ours(x).sum().backward()
        run(y).sum().backward()
        assert_same(x.grad, y.grad)

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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_view_of_a_parameter_can_be_differentiated_outside(mode: type, dynamic: bool) -> None:
    """Sizes that change are compiled in a call, which may run in inference mode, as Dynamo itself never does."""
    weight = torch.nn.Parameter(torch.randn(4, 3))

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 2 - 1, weight.t(), weight[1:].view(-1)

    torch.compiler.reset()
    ours = compiled(run, dynamic=dynamic)
    for rows in (3, 3, 5):
        x = torch.randn(rows, 4)
        with mode():
            found, expected = ours(x), run(x)
        assert_same(found, expected)
        for view in found[1:]:
            assert view.requires_grad and view.is_leaf and view._is_view() and view._base is weight
        gradients = []
        for view in (found[1], expected[1]):
            (view * torch.arange(4.0)).sum().backward()
            gradients.append((weight.grad, view.grad))
            weight.grad = None
        assert_same(*gradients)


def test_a_view_of_a_parameter_is_compiled_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 3))
    ours = compiled(lambda x: (x * 2 - 1, weight.t()))
    with torch.no_grad():
        ours(torch.randn(2, 4))
    assert not [found for found in recwarn if "treeplay" in str(found.message)]

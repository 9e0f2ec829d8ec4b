"""Graphs that enter inference mode themselves."""

from __future__ import annotations

import pytest
import torch

from support import assert_same, guided_by
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


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_graph_that_leaves_the_mode_around_the_call_runs_uncompiled_under_it(dynamic: bool) -> None:
    weight = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.inference_mode(False):
            return x.clone() @ weight - 1, weight.detach() * 2, weight[1:]

    torch.compiler.reset()
    ours = compiled(run, dynamic=dynamic)
    for rows in (2, 2, 3):
        gradients = []
        for call in (ours, run):
            with torch.inference_mode():
                found = call(torch.ones(rows, 2))
            assert [(t.is_inference(), t.requires_grad) for t in found] == [
                (False, True),
                (False, False),
                (False, True),
            ]
            weight.grad = None
            (found[0].square().sum() - found[2].sum() * 7).backward()
            gradients.append(([t.detach() for t in found], weight.grad))
        assert_same(*gradients)


def test_a_graph_that_enters_the_mode_and_leaves_it_again_inside() -> None:
    layer = torch.nn.Linear(2, 2)

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(True):
            y = x * 2
            with torch.inference_mode(False):
                return layer(y.clone()) - 1  # type: ignore[no-any-return]

    ours = compiled(run)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        gradients = []
        for call in (ours, run):
            with mode():
                found = call(torch.ones(3, 2))
            layer.zero_grad()
            if found.requires_grad:
                found.square().sum().backward()
            gradients.append((found.detach(), found.is_inference(), layer.weight.grad))
        assert_same(*gradients)


def test_the_line_that_leaves_the_mode_around_the_call_is_told_once() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False):
            return x.clone() * 2 - 1

    ours = compiled(run)
    expected = r"leaves the inference mode(.|\n)*in run(.|\n)*x\.clone\(\) \* 2"
    with torch.inference_mode(), pytest.warns(UserWarning, match=expected) as told:
        ours(torch.ones(2))
        ours(torch.ones(2))
    assert len([one for one in told if "inference mode" in str(one.message)]) == 1


def test_a_graph_that_leaves_the_mode_is_compiled_for_calls_outside_of_it(recwarn: pytest.WarningsRecorder) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode(False):
            return x.clone() * 3 - 1

    ours = compiled(run)
    for _ in range(3):
        x = torch.randn(2)
        with torch.no_grad():
            assert_same(ours(x), run(x))
    assert not [found for found in recwarn if "treeplay" in str(found.message)]


def test_guidance_by_a_gradient_in_inference_mode() -> None:
    guided = guided_by(torch.nn.Linear(2, 1))
    ours = compiled(guided)
    with torch.inference_mode():
        for _ in range(3):
            x = torch.randn(3, 2)
            assert_same(ours(x), guided(x))


@pytest.mark.parametrize("of", ["parameter", "result"])
def test_a_view_taken_with_gradients_on_carries_them_where_they_are_off_around_the_call(of: str) -> None:
    weight = torch.nn.Parameter(torch.arange(1.0, 5.0))

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad():
            product = weight * x - weight
            return product, (weight if of == "parameter" else product)[1:]

    ours = compiled(run)
    for k in range(3):
        seen = []
        for call in (ours, run):
            with torch.no_grad():
                found = call(torch.full((4,), k + 0.5))
            weight.grad = None
            (found[0].square().sum() - found[1].sum() * 7).backward()
            seen.append(([t.detach() for t in found], [t.is_leaf for t in found], weight.grad))
        assert_same(*seen)

"""A backward without the gradients that did not come: what depends on them alone is not there."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from treeplay.wrap.aot.calls.partial import backward_groups, without_gradients
from treeplay.wrap.aot.plan.facts import BackwardGroup
from wrap.aot.oracle import wrapped

aten = torch.ops.aten


def graph_of(make: Callable[..., list[Any]]) -> torch.fx.GraphModule:
    """A backward over two saved tensors and two gradients."""
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(name) for name in ("a", "b", "g0", "g1")]
    graph.output(tuple(make(graph.call_function, *inputs)))
    module = torch.fx.GraphModule(torch.nn.Module(), graph)
    with FakeTensorMode() as mode:

        class Noting(torch.fx.Interpreter):
            def run_node(self, n: Any) -> Any:
                n.meta["val"] = value = super().run_node(n)
                return value

        Noting(module).run(*(mode.from_tensor(torch.ones(2, 3)) for _ in inputs))
    return module


def sums(call: Any, a: Any, b: Any, g0: Any, g1: Any) -> list[Any]:
    """g0 · a + g1 · b, and g1 · b alone."""
    left, right = call(aten.mul.Tensor, (g0, a)), call(aten.mul.Tensor, (g1, b))
    return [call(aten.add.Tensor, (left, right)), right, None]


def joined(call: Any, a: Any, b: Any, g0: Any, g1: Any) -> list[Any]:
    """g0 and g1ᵀ one below the other, times a."""
    turned = call(aten.t.default, (call(aten.mul.Tensor, (g1, b)),))
    back = call(aten.t.default, (turned,))
    return [call(aten.cat.default, ([g0, back],)), call(aten.exp.default, (a,))]


VALUES = [torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.full((2, 3), float("inf"))]
GRADIENT = torch.full((2, 3), -2.0)


def test_a_sum_is_the_part_that_came() -> None:
    module, taken = without_gradients(graph_of(sums), 2, (1,))
    assert taken == (0, 2)
    total, alone, nothing = module(VALUES[0], GRADIENT)
    assert torch.equal(total, GRADIENT * VALUES[0]) and alone is None and nothing is None
    targets = [node.target for node in module.graph.nodes if node.op == "call_function"]
    assert targets == [aten.mul.Tensor]


def test_what_takes_several_is_given_zeros_and_not_zero_times_infinity() -> None:
    module, _ = without_gradients(graph_of(joined), 2, (1,))
    both, of_saved = module(VALUES[0], GRADIENT)
    assert torch.equal(both, torch.cat([GRADIENT, torch.zeros(2, 3)]))
    assert torch.equal(of_saved, VALUES[0].exp())


def turned_in_a_sum(call: Any, a: Any, b: Any, g0: Any, g1: Any) -> list[Any]:
    """g1 + (g0ᵀ · aᵀ)ᵀ as one row; the second part lies column by column, the sum row by row."""
    product = call(aten.mul.Tensor, tuple(call(aten.t.default, (each,)) for each in (g0, a)))
    rows = call(aten.clone.default, (product,), {"memory_format": torch.contiguous_format})
    columns = call(aten.t.default, (rows,))
    return [call(aten.view.default, (call(aten.add.Tensor, (g1, columns)), [6]))]


def test_a_part_that_lies_otherwise_than_the_sum_stays_as_it_lies_and_a_view_of_it_is_possible() -> None:
    module, _ = without_gradients(graph_of(turned_in_a_sum), 2, (1,))
    (row,) = module(VALUES[0], GRADIENT)
    assert torch.equal(row, (GRADIENT * VALUES[0]).flatten())
    assert aten.add.Tensor not in [node.target for node in module.graph.nodes]


@pytest.mark.parametrize("make", [sums, joined])
def test_with_all_gradients_it_is_the_same(make: Any) -> None:
    whole = graph_of(make)
    again, taken = without_gradients(whole, 2, ())
    given = [VALUES[0], VALUES[0] * 3, GRADIENT, GRADIENT * 5]
    assert taken == (0, 1, 2, 3)
    for one, other in zip(again(*given), whole(*given), strict=True):
        assert (one is other is None) or torch.equal(one, other)


def test_the_graph_itself_stays_as_it_is() -> None:
    whole = graph_of(sums)
    before = str(whole.graph)
    without_gradients(whole, 2, (0,))
    assert str(whole.graph) == before


def chained(call: Any, a: Any, b: Any, g0: Any, g1: Any) -> list[Any]:
    """A trunk with a: (g0 · b + g1) · a."""
    branch = call(aten.mul.Tensor, (g0, b))
    return [call(aten.mul.Tensor, (call(aten.add.Tensor, (branch, g1)), a))]


def test_gradients_that_only_add_up_are_groups_of_their_own() -> None:
    assert backward_groups(graph_of(sums), 2) == (BackwardGroup((0,), (0,)), BackwardGroup((1,), (1,)))
    assert backward_groups(graph_of(chained), 2) == ()


def test_a_gradient_that_keeps_its_graph_is_no_constant() -> None:
    def make() -> list[Any]:
        return [torch.tensor([1.0, 2.0], requires_grad=True)]

    call = wrapped(lambda x: [(x * 3).exp()], make)  # saves its result, and not x
    (x,) = make()
    (slope,) = torch.autograd.grad(call([x])[0].sum(), x, create_graph=True)
    assert slope.requires_grad
    with pytest.raises(RuntimeError, match="differentiated twice"):
        slope.sum().backward()


def test_a_backward_frees_what_it_used_and_no_more() -> None:
    def make() -> list[Any]:
        return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]

    call = wrapped(lambda x, y: [x.exp(), y.sin(), x * y], make)
    assert [group.tangents for group in call.plan.node.groups] == [(0,), (1,), (2,)]
    x, y = make()
    a, b, c = call([x, y])
    a.sum().backward()
    b.sum().backward(retain_graph=True)
    b.sum().backward()
    c.sum().backward()
    assert torch.equal(x.grad, x.exp() + y) and torch.equal(y.grad, y.cos() * 2 + x)
    for result in (a, b, c):
        with pytest.raises(RuntimeError, match="a second time"):
            result.sum().backward()
    a, b, c = call([x, y])
    a.sum().backward()
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        b.sum().backward()


def test_the_kept_part_keeps_no_result_alive() -> None:
    def make() -> list[Any]:
        return [torch.tensor([1.0, 2.0], requires_grad=True)]

    call = wrapped(lambda x: [x.exp(), (x * 2).exp()], make)
    (x,) = make()
    a, b = call([x])
    a.sum().backward()
    gone = weakref.ref(b.grad_fn)
    del a, b
    assert gone() is None

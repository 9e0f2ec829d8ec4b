"""Results that are arguments, views of them, or views of what the graph made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treeplay.values.output import Fresh, SameAsInput, View
from treeplay.wrap.aot.plan import planning
from wrap.aot.oracle import alike, grown, min_cut, numbers, twin, wrapped


def test_W7_one_tensor_twice_and_then_two_tensors_share_a_graph() -> None:
    traced: list[int] = []

    def product(a: Any, b: Any) -> Any:
        traced.append(1)
        return [a * b]

    x = alike(3, 1, grad=True)
    call = wrapped(product, lambda: [x, x])
    times = len(traced)
    call([x, x])[0].sum().backward()
    assert x.grad.item() == 6
    assert call([alike(3, 1), alike(5, 1)])[0].item() == 15
    assert len(traced) == times and call.plan.copies == ()


def test_W7_duplicates_that_are_returned_are_views_of_the_argument() -> None:
    x = numbers(2, 3)
    call = wrapped(lambda a, b: [a, b.view(-1)], lambda: [x, x])
    first, second = call([x, x])
    assert first is x and second._base is x


def test_W29_results_keep_their_identity() -> None:
    parameter = torch.nn.Parameter(numbers(2, 3))
    (result,) = wrapped(lambda x: [x], lambda: [parameter])([parameter])
    assert result is parameter
    x = numbers(2, 3, grad=True)
    one, two, again = wrapped(lambda x: (lambda y: [y, y, x])(x * 2), lambda: [x])([x])
    assert one is two and again is x
    values, indices = wrapped(lambda x: [*x.max(0)], lambda: [x])([x])
    assert values.requires_grad and not indices.requires_grad
    kinds = [type(result) for result in wrapped(lambda x: [3, None, x, x * 2, x.view(-1)], lambda: [x]).plan.results]
    assert kinds == [Fresh, Fresh, SameAsInput, Fresh, View]


def test_W29_a_view_through_a_custom_function_keeps_its_own_backward() -> None:
    class View(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.view(2, 3) * 5

    call = twin(lambda x: [View.apply(x)], lambda: [numbers(2, 3, grad=True)])
    x = numbers(2, 3, grad=True)
    call([x])[0].sum().backward()
    assert x.grad.tolist() == [[5] * 3] * 2


def test_W30_a_view_shares_base_history_and_version() -> None:
    call = wrapped(lambda x: [x.view(-1)], lambda: [grown(2, 3)])
    leaf = numbers(2, 3, grad=True)
    x = leaf * 1
    (view,) = call([x])
    assert view._base is x and "View" in type(view.grad_fn).__name__
    view.mul_(2)
    assert x._version == view._version == 1
    x.sum().backward()
    assert leaf.grad.tolist() == [[2] * 3] * 2


def test_W30_views_of_two_arguments_that_alias_have_the_base_of_both() -> None:
    call = wrapped(lambda a, b: [a.view(-1), b.view(2, 2)], lambda: [numbers(4), numbers(4)])
    x = numbers(4)
    one, two = call([x[:], x.view(4)])
    assert one._base is x and two._base is x


def test_W30_writing_to_one_of_many_views_raises_as_in_eager() -> None:
    def unbound(x: Any) -> Any:
        return [*x.unbind(0)]

    for run in (lambda args: unbound(*args), wrapped(unbound, lambda: [grown(2, 3)])):
        views = run([grown(2, 3)])
        with pytest.raises(RuntimeError, match="view"):
            views[0].mul_(2)


RETYPED: dict[str, Any] = {
    "as wide": lambda x: x.view(torch.int32),
    "narrower": lambda x: x[1:].view(torch.int16),
    "wider": lambda x: x.view(torch.int64),
    "of bits": lambda x: x.view(torch.int32)[:, 1:],
    "complex": lambda x: torch.view_as_complex(x[2:].unsqueeze(0)),
    "real": lambda x: torch.view_as_real(torch.view_as_complex(x))[1:],
}


@pytest.mark.parametrize("kind", RETYPED)
def test_W30_W33_views_of_another_dtype(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that no noted steps lead to, as with an older torch."""
    view = RETYPED[kind]
    twin(lambda x: [view(x)], lambda: [numbers(4, 2)[1:] if kind == "of bits" else numbers(4, 2)])
    monkeypatch.setattr(planning, "_steps", lambda sequence: None)
    twin(lambda x: [view(x), view(x + 1)], lambda: [numbers(4, 2)])
    if kind in ("complex", "real"):
        twin(lambda x: [view(x)], lambda: [numbers(4, 2, grad=True) * 1])


def test_W30_a_view_of_another_dtype_of_an_argument_whose_shape_changes() -> None:
    """It had the argument's dtype."""
    twin(lambda x: (x.t_(), x.mul_(2), [x.view(torch.int32)])[2], lambda: [numbers(2, 3)])
    twin(lambda x: (x.mul_(2), x.t_(), [x.view(torch.int32)[1:], x[0]])[2], lambda: [numbers(4, 2)[1:]])


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.diagonal(),
        lambda x: x.as_strided((2,), (2,), 1),
        lambda x: x.contiguous(),
        lambda x: x[:, 1:],
        lambda x: x.unfold(0, 2, 1),
    ],
)
def test_W30_kinds_of_views(view: Any) -> None:
    twin(lambda x: [view(x), x * 2], lambda: [numbers(3, 3)])
    twin(lambda x: [view(x), x * 2], lambda: [grown(3, 3)])


def test_W30_conjugate_and_real_views() -> None:
    def make() -> list[Any]:
        return [torch.complex(numbers(3), numbers(3))]

    twin(lambda x: [torch.view_as_real(x)], make)
    twin(lambda x: [x.conj()], make)


def test_W31_views_of_one_inside_tensor_share_it() -> None:
    call = wrapped(lambda x: (lambda y: [y.view(-1), y.t()])(x * 2), lambda: [numbers(2, 3, grad=True)])
    x = numbers(2, 3, grad=True)
    one, two = call([x])
    assert one._base is two._base is not None
    one.mul_(3)
    assert torch.equal(two, x.detach().t() * 6)
    (two * numbers(3, 2)).sum().backward()
    assert torch.equal(x.grad, numbers(3, 2).t() * 6)
    assert [isinstance(result, View) and isinstance(result.of, Fresh) for result in call.plan.results] == [True, True]


@pytest.mark.parametrize("is_flipped", [False, True])
def test_W31_a_result_may_be_the_base_of_another(is_flipped: bool) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return [y.view(-1), y] if is_flipped else [y, y.view(-1)]

    call = twin(function, lambda: [numbers(2, 3, grad=True)])
    results = call([numbers(2, 3, grad=True)])
    y, view = reversed(results) if is_flipped else results
    assert view._base is y


def test_W31_a_detached_twin_shares_memory_without_history() -> None:
    call = twin(lambda x: (lambda y: [y, y.detach()])(x * 2), lambda: [numbers(2, 3, grad=True)])
    y, detached = call([numbers(2, 3, grad=True)])
    assert [y.requires_grad, detached.requires_grad] == [True, False] and torch._C._is_alias_of(y, detached)


def test_W31_shapes_changed_inside_and_views_of_two_tensors() -> None:
    def function(x: Any) -> Any:
        y, z = x * 2, x + 1
        y.t_()
        return [y.reshape(-1), y, z.view(-1), z.t()]

    twin(function, lambda: [numbers(2, 3, grad=True)])
    twin(lambda x: [(x * 2).t_(), (x * 3).unsqueeze_(0)], lambda: [numbers(2, 3, grad=True)])


def test_W31_what_is_detached_inside_shares_memory_with_its_views_and_has_no_history() -> None:
    def function(x: Any, w: Any) -> Any:
        y, z = x * 2, x * 5
        z.detach_()
        y.t_()
        return [y * w, y, y.view(3, 2)[1:], z, z.view(-1), z * w.t()]

    make = lambda: [numbers(2, 3, grad=True), numbers(3, 2, grad=True)]  # noqa: E731
    call = twin(function, make)
    twin(function, make, partition=min_cut)
    _, y, of_y, z, of_z, _ = call(make())
    assert y.requires_grad and of_y._base is y and not z.requires_grad and not of_z.requires_grad
    assert call.plan.values == len(call.plan.results), "a base was returned beside the results"


def test_W31_without_gradients_views_lie_in_one_memory_and_have_no_history() -> None:
    call = twin(lambda x: (lambda y: [y.view(-1), y.t()])(x * 2), lambda: [numbers(2, 3)])
    assert call.plan.node is None
    flat, turned = call([numbers(2, 3)])
    before = turned.clone()
    flat.mul_(3)
    assert torch.equal(turned, before * 3) and flat.grad_fn is turned.grad_fn is None


def test_W32_a_lone_view_has_no_base_and_can_be_written() -> None:
    call = twin(lambda x: [(x * 2).view(-1)], lambda: [numbers(2, 3, grad=True)])
    x = numbers(2, 3, grad=True)
    (view,) = call([x])
    assert view._base is None
    view.mul_(2)
    view.sum().backward()
    assert x.grad.tolist() == [[4] * 3] * 2


def test_W32_views_of_arguments_of_inside_tensors_and_shapes_in_one_function() -> None:
    class View(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view(-1)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient.view(2, 3) * 5

    def function(x: Any, z: Any) -> Any:
        y = x * 2
        z.t_()
        return [View.apply(x), x.view(-1), y.view(-1), y[0], z + 1]

    twin(function, lambda: [numbers(2, 3, grad=True), numbers(2, 3)])


@pytest.mark.parametrize("base_needs", [False, True])
@pytest.mark.parametrize("result_needs", [False, True])
def test_W33_the_flag_of_a_view_is_eagers(base_needs: bool, result_needs: bool) -> None:
    def function(x: Any, w: Any) -> Any:
        if base_needs == result_needs:
            return [x.view(-1), w * 2]
        return [x.detach().view(-1), w * 2] if base_needs else [x.view(-1), w * 2]

    call = twin(function, lambda: [numbers(2, 3, grad=base_needs), numbers(2, grad=True)])
    flags = [(view.is_detached, view.requires_grad) for view in call.plan.results if isinstance(view, View)]
    assert flags == [(base_needs and not result_needs, False)]


def test_W33_a_base_of_another_shape_gives_a_view_of_the_same_kind() -> None:
    call = wrapped(lambda x: [x.view(-1)], lambda: [numbers(2, 3)])
    base = numbers(6, 2)
    x = base.view(12)[2:8].view(2, 3)
    (view,) = call([x])
    assert torch.equal(view, x.view(-1)) and view._base is base


def test_W33_a_complex_base_and_real_views_of_it() -> None:
    def function(x: Any) -> Any:
        real = torch.view_as_real(x)
        return [real, torch.view_as_complex(real), real[..., 0]]

    twin(function, lambda: [torch.complex(numbers(3), numbers(3))])


def test_W31_a_result_that_is_a_slice_may_be_the_base_of_one_of_another_dtype() -> None:
    def function(x: Any) -> Any:
        part = (x * 2)[1:]
        return [part, part.detach().view(torch.int32)]

    twin(function, lambda: [numbers(2, 3, grad=True)])

"""The one autograd node of training plans: what it saves, when it compiles, which gradients it gives."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from support import TRACES_STRIDES
from wrap.aot.oracle import alike, boxed, device, grown, min_cut, numbers, twin, wrapped


def product(x: Any, w: Any) -> Any:
    return [(x * w).sin()]


def two() -> list[Any]:
    return [numbers(2, 3, grad=True), numbers(2, 3, grad=True)]


def test_W34_results_come_from_one_node_and_none_without_a_gradient() -> None:
    call = wrapped(lambda x, w: [x * w, x.sin() + w, (x * 2).detach(), x.argmax()], two)
    a, b, c, d = call(two())
    assert a.grad_fn is b.grad_fn is not None
    assert not c.requires_grad and not d.requires_grad
    with torch.no_grad():
        assert wrapped(product, two).plan.node is None


def test_W21_a_training_plan_tracks_under_the_callers_no_grad() -> None:
    def function(x: Any) -> Any:
        with torch.enable_grad():
            y = x * 2
        return [y, x * 3]

    def make() -> list[Any]:
        return [numbers(2, grad=True)]

    with torch.no_grad():
        call = wrapped(function, make)
        assert [item.requires_grad for item in call(make())] == [True, False]
        assert not torch.is_grad_enabled()


def test_W35_a_saved_argument_that_changed_is_noticed() -> None:
    call = wrapped(product, two)
    x, w = two()
    (y,) = call([x, w])
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_W35_saved_tensors_die_with_the_backward() -> None:
    saved: list[Any] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            values = run(args)
            saved.extend(weakref.ref(value) for value in values[1:] if not value.requires_grad)
            return values

        return spy

    call = wrapped(lambda x, w: [(x.sin() * w.cos()).exp().sum()], two, forward=compiler)
    gc.disable()
    try:
        (y,) = call(two())
        assert any(value() is not None for value in saved)
        y.backward()
        assert all(value() is None for value in saved)
    finally:
        gc.enable()


def test_W37_gradients_arrive_in_the_expected_layout() -> None:
    strides: list[Any] = []
    arrived: list[Any] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            strides.append(args[-1].stride())
            arrived.append(args[-1].data_ptr())
            return run(args)

        return spy

    def make() -> list[Any]:
        return [numbers(3, 4, grad=True)]

    call = wrapped(lambda x: [x.t().sin()], make, backward=compiler)
    expected = (1, 4) if TRACES_STRIDES else (3, 1)
    for gradient in (alike(1, 4, 3), alike(1, 3, 4).t(), alike(1, 1, 1).expand(4, 3)):
        (y,) = call(make())
        y.backward(gradient)
        assert y.stride() == (1, 4) and strides[-1] == expected
        assert (arrived[-1] == gradient.data_ptr()) == (gradient.stride() == expected)


def test_W39_the_backward_is_compiled_once_when_first_needed() -> None:
    compiled: list[Any] = []

    def compiler(module: Any, inputs: Any) -> Any:
        compiled.append(module)
        if len(compiled) == 1:
            raise ValueError("the first compile fails")
        return boxed(module, inputs)

    call = wrapped(product, two, backward=compiler)
    (y,) = call(two())
    assert not compiled
    with pytest.raises(ValueError, match="first compile"):
        y.sum().backward(retain_graph=True)
    for _ in range(3):
        call(two())[0].sum().backward()
    assert len(compiled) == 2


@pytest.mark.parametrize("keeps", [(True, True, False), (False, True, True, False)])
def test_Wplus9_the_graph_can_be_kept_in_any_order(keeps: tuple[bool, ...]) -> None:
    call = wrapped(product, two, partition=min_cut)
    x, w = two()
    (y,) = call([x, w])
    expected = torch.autograd.grad((x * w).sin().sum(), [x, w])
    for keep in keeps:
        if not keep:
            y.sum().backward()
            (y,) = call([x, w])
            continue
        y.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, expected[0] * len(keeps))
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_W41_a_second_derivative_raises() -> None:
    call = wrapped(product, two)
    x, w = two()
    (gradient,) = torch.autograd.grad(call([x, w])[0].sum(), x, create_graph=True)
    assert gradient.requires_grad and gradient.grad_fn is not None
    with pytest.raises(RuntimeError, match="differentiated twice"):
        torch.autograd.grad(gradient.sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad((x * w).sin().sum(), x)[0])


def test_W42_autocast_is_off_in_the_backward() -> None:
    seen: list[bool] = []

    def compiler(module: Any, inputs: Any) -> Any:
        run = boxed(module, inputs)

        def spy(args: list[Any]) -> Any:
            seen.append(torch.is_autocast_enabled(device()))
            return run(args)

        return spy

    def make() -> list[Any]:
        return [numbers(2, 2, grad=True), numbers(2, 2, grad=True)]

    with torch.autocast(device(), dtype=torch.bfloat16):
        call = wrapped(lambda x, w: [x @ w], make, backward=compiler)
        x, w = make()
        (y,) = call([x, w])
        y.float().sum().backward()
    assert seen == [False] and y.dtype is torch.bfloat16 and x.grad.dtype is torch.float32


def test_W13_an_argument_without_a_gradient_keeps_its_history_to_itself() -> None:
    def make() -> list[Any]:
        return [grown(2), numbers(2, grad=True)]

    call = wrapped(lambda x, y: [x.detach() * 2 + y], make)
    leaf, y = numbers(2, grad=True), numbers(2, grad=True)
    x = leaf * 3
    call([x, y])[0].sum().backward()
    x.sum().backward()
    assert torch.equal(leaf.grad, alike(3, 2)) and torch.equal(y.grad, alike(1, 2))


def test_Wplus5_a_gradient_that_did_not_arrive_stays_missing() -> None:
    def make() -> list[Any]:
        return [numbers(2, grad=True), numbers(2, grad=True)]

    call = wrapped(lambda w, v: [w * 2, v * 3], make)
    w, v = make()
    optimizer = torch.optim.SGD([w, v], lr=0.1, weight_decay=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        call([w, v])[0].sum().backward()
        optimizer.step()
    assert v.grad is None and torch.equal(v, make()[1]) and not torch.equal(w, make()[0])


def test_W44_hooks_on_saved_tensors_pack_and_unpack() -> None:
    packed: list[Any] = []

    def pack(value: torch.Tensor) -> Any:
        packed.append(value)
        return value.to(torch.float64)

    call = wrapped(product, two)
    x, w = two()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value.to(torch.float32)):
        (y,) = call([x, w])
    y.sum().backward()
    assert packed
    torch.testing.assert_close(x.grad, torch.autograd.grad((x * w).sin().sum(), x)[0])


def test_W23_a_written_argument_keeps_its_history_outside() -> None:
    def function(x: Any) -> Any:
        x.mul_(2)
        return [x * 3]

    call = twin(function, lambda: [grown(2, 3)])
    leaf = numbers(2, grad=True)
    x = leaf * 1
    wrapped(function, lambda: [grown(2)])([x])[0].sum().backward(retain_graph=True)
    assert torch.equal(leaf.grad, alike(6, 2))
    assert call.plan.writes[0].is_tracked

"""W+15: a backward that is differentiated: gradients of gradients are eager's, and what cannot be done is told."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from treeplay.backend.job import plain_compilers
from treeplay.errors import Refusal, UsageError
from treeplay.wrap.aot.calls import again, redrawn
from wrap.aot.oracle import alike, numbers, wrapped

Function = Callable[..., list[torch.Tensor]]


def make() -> list[torch.Tensor]:
    return [numbers(2, 3, grad=True), numbers(3, grad=True)]


def weights(value: torch.Tensor) -> torch.Tensor:
    return torch.linspace(0.5, 1.5, value.numel(), device=value.device).view_as(value)


def derivatives(function: Function, order: int) -> list[Any]:
    """Gradients of the arguments, their gradients, and so on."""
    args = make()
    values, found = function(*args), []
    for _ in range(order):
        total = sum((value * weights(value)).sin().sum() for value in values)
        gradients = torch.autograd.grad(total, args, create_graph=True, allow_unused=True)
        found += gradients
        values = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    return found


def both(function: Function, order: int = 2) -> Any:
    """Compare the derivatives of a function and of its wrapped form, which is returned."""
    call = wrapped(function, make, plain=plain_compilers)
    expected = derivatives(function, order)
    for _ in range(2):
        for ours, eagers in zip(derivatives(lambda *args: call([*args]), order), expected, strict=True):
            assert (ours is None) == (eagers is None)
            if eagers is not None:
                torch.testing.assert_close(ours, eagers)
    return call


def with_no_grad(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    with torch.no_grad():
        mean = (x * w).mean()
    return [(x * w - mean).exp() * (x * w).detach()]


def with_views(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    y = x * w + x
    y[0] = x[1].exp()
    return [y.t(), y[0], x.sin() + w]


class Slanted(torch.autograd.Function):
    """A function whose backward is not its derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0] ** 3


@pytest.mark.parametrize(
    "function",
    [with_no_grad, with_views, lambda x, w: [Slanted.apply(x * w), (x @ w).cos()]],
    ids=["no_grad", "views", "custom function"],
)
def test_Wplus15_second_derivatives_are_eagers(function: Function) -> None:
    both(function)


def test_third_derivatives_are_eagers() -> None:
    both(lambda x, w: [(x * w).exp() * x.sin()], order=3)


def test_Wplus15_first_derivatives_stay_compiled() -> None:
    compiled = []

    def backward(module: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(module)
        return plain_compilers().backward(module, inputs)

    function = lambda x, w: [(x * w).tanh()]  # noqa: E731
    call = wrapped(function, make, plain=plain_compilers, backward=backward)
    derivatives(lambda *args: call([*args]), 2)
    assert not compiled
    x, w = make()
    call([x, w])[0].sum().backward()
    assert len(compiled) == 1 and call.backward.is_compiled


def test_a_gradient_of_some_results_leads_on() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [x.pow(3), (w * 0).sqrt()]

    call = wrapped(function, make, plain=plain_compilers)
    x, w = make()
    (slope,) = torch.autograd.grad(call([x, w])[0].sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], 6 * x)


def test_a_second_derivative_that_is_a_constant_lets_others_lead_on() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [(x + 2 * w).sum()]

    call = wrapped(function, make, plain=plain_compilers)
    x, w = make()
    hidden = x.pow(3)
    (slope,) = torch.autograd.grad(call([hidden, w])[0], x, create_graph=True)
    slope.square().sum().backward()  # which goes through all that the slope was made of
    torch.testing.assert_close(x.grad, 36 * x.detach() ** 3)


def test_running_statistics_may_be_written() -> None:
    mean, variance = alike(0, 3), alike(1, 3)

    def function(x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> list[torch.Tensor]:
        return [torch.nn.functional.batch_norm(x * w, mean, variance, training=True).exp()]

    call = wrapped(function, lambda: [*make(), mean.clone(), variance.clone()], plain=plain_compilers)
    ours, eagers = [mean.clone(), variance.clone()], [mean.clone(), variance.clone()]
    found = derivatives(lambda x, w: call([x, w, *ours]), 2)
    for one, other in zip(found, derivatives(lambda x, w: function(x, w, *eagers), 2), strict=True):
        torch.testing.assert_close(one, other)
    for one, other in zip(ours, eagers, strict=True):
        torch.testing.assert_close(one, other)


def test_a_change_in_place_before_the_backward_is_torchs_own_error() -> None:
    call = wrapped(lambda x, w: [(x + w).exp()], make, plain=plain_compilers)
    x, w = make()
    y = call([x, w])[0].sum()
    with torch.no_grad():
        w.add_(1)  # the compiled backward does not need it, the recomputed forward does
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.grad(y, x, create_graph=True)


def drawn(function: Function, order: int = 2, only: int | None = None) -> list[Any]:
    """Derivatives under one seed, of one result or of all, and what is drawn after each."""
    torch.manual_seed(5)
    args, found = make(), []
    values = function(*args)
    values = values if only is None else [values[only]]
    for _ in range(order):
        found.append(torch.rand(2))
        total = sum((value * torch.linspace(0.5, 1.5, value.numel()).view_as(value)).sin().sum() for value in values)
        gradients = torch.autograd.grad(total, args, create_graph=True, allow_unused=True)
        found += gradients
        values = [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
    return found


def dropped(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    torch.rand(3)  # which nobody uses
    first = torch.nn.functional.dropout(x * w, 0.4).exp()
    return [first, torch.nn.functional.dropout(first.sin(), 0.3) * torch.bernoulli(x.detach().sigmoid())]


@pytest.mark.parametrize("only", [None, 0])
def test_random_numbers_are_drawn_again(only: int | None) -> None:
    call = wrapped(dropped, make, plain=plain_compilers)
    expected = drawn(dropped, 2, only)
    for _ in range(2):
        for ours, eagers in zip(drawn(lambda *args: call([*args]), 2, only), expected, strict=True):
            torch.testing.assert_close(ours, eagers)


def test_a_program_that_draws_nothing_asks_no_generator() -> None:
    assert "states_before" not in wrapped(lambda x, w: [(x * w).exp()], make, plain=plain_compilers).sources[1]


def test_a_generator_that_cannot_be_asked_keeps_the_first_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_capture(device: torch.device) -> torch.Generator:
        raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture")

    monkeypatch.setattr(redrawn, "_default", in_a_capture)
    call = wrapped(dropped, make, plain=plain_compilers)
    x, w = make()
    (slope,) = torch.autograd.grad(call([x, w])[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiated twice: .*as in a capture"):
        slope.sum().backward()


class DrawsLate(torch.autograd.Function):
    """A function whose backward draws."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.rand_like(gradient)


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x, w: [DrawsLate.apply(x * w).exp()], "its backward draws random numbers"),
        (lambda x, w: [x.mul_(w).exp()], "overwrites arguments of more than"),
    ],
    ids=["late", "large"],
)
def test_what_cannot_be_computed_again_gives_the_first_gradient_and_says_why(
    function: Function, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def arguments() -> list[torch.Tensor]:
        return [numbers(2, 3, grad=True) * 1, numbers(3, grad=True)]

    monkeypatch.setattr(again, "_MOST_COPIED_BYTES", 0) if "more than" in why else None
    call = wrapped(function, arguments, plain=plain_compilers)
    x, w = arguments()
    (slope,) = torch.autograd.grad(call([x, w])[0].sum(), w, create_graph=True)
    with pytest.raises(UsageError, match=f"differentiated twice: .*{why}"):
        slope.sum().backward()


def overwriting(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor, count: torch.Tensor) -> list[torch.Tensor]:
    y = x.mul_(w).exp() * state.clone()  # eager, too, has to keep what the state was
    with torch.no_grad():
        state.mul_(0.5).add_(y.mean(0))
        count.add_(1)
    return [y.sin(), x + 1]


def overwritten(function: Function) -> list[torch.Tensor]:
    """Derivatives of second order, with respect to what an overwritten argument was made of too."""
    leaf, w = make()
    state, count, found = torch.linspace(0.5, 2.0, 3), torch.zeros(()), []
    for _ in range(2):
        x = leaf * 2 + 1
        y, z = function(x, w, state, count)
        slopes = torch.autograd.grad((y * 1.5).sum() + z.cos().sum(), (leaf, w), create_graph=True)
        found += [*slopes, *torch.autograd.grad(sum(slope.pow(2).sum() for slope in slopes) + x.sum(), (leaf, w))]
    return [*found, state, count]


def test_what_a_call_overwrites_is_kept_as_it_was() -> None:
    samples = lambda: [numbers(2, 3, grad=True) * 1, numbers(3, grad=True), torch.ones(3), torch.zeros(())]  # noqa: E731
    call = wrapped(overwriting, samples, plain=plain_compilers)
    for ours, eagers in zip(overwritten(lambda *args: call([*args])), overwritten(overwriting), strict=True):
        torch.testing.assert_close(ours, eagers)


def test_what_a_call_overwrites_and_no_gradient_needs_is_not_kept() -> None:
    def counting(w: torch.Tensor, count: torch.Tensor) -> list[torch.Tensor]:
        count.add_(1)
        return [w.exp()]

    call = wrapped(counting, lambda: [numbers(3, grad=True), torch.zeros(())], plain=plain_compilers)
    assert "copies" not in call.sources[1] and "ref(arg1)" in call.sources[1]


def test_an_error_while_a_second_derivative_is_made_is_told_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("no such node")

    monkeypatch.setattr(again, "_gradients_of", broken)
    call = wrapped(lambda x, w: [(x * w).exp()], make, plain=plain_compilers)
    x, w = make()
    (slope,) = torch.autograd.grad(call([x, w])[0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiated twice: .*error of treeplay's own: .*no such node"):
        slope.sum().backward()


def test_a_second_derivative_that_is_refused_keeps_nothing_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise Refusal.of("create_graph", "it is told to", "none", None)

    monkeypatch.setattr(again, "_gradients_of", refused)
    call = wrapped(lambda x, w: [(x * w).exp()], make, plain=plain_compilers)
    for _ in range(2):
        x, w = make()
        (slope,) = torch.autograd.grad(call([x, w])[0].sum(), x, create_graph=True)
        gone = weakref.ref(x)
        del x, w, slope
        gc.collect()
        assert gone() is None


def test_an_argument_that_nobody_else_needs_is_not_kept() -> None:
    call = wrapped(lambda x, w: [x + w], lambda: [numbers(3), numbers(3, grad=True)], plain=plain_compilers)
    assert "ctx.given = (ref(arg0), arg1)" in call.sources[1]  # a leaf lives anyway


def test_what_is_kept_goes_with_the_last_backward() -> None:
    call = wrapped(lambda x, w: [(x * w).exp()], make, plain=plain_compilers)
    y = call(make())[0]
    y.sum().backward(retain_graph=True)
    assert y.grad_fn.given is not None
    y.sum().backward()
    assert y.grad_fn.given is None

"""Forward-mode derivatives: a tangent that is zero is nothing that is computed with, beside an infinity too."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import hessian, jacfwd, jvp, vmap

from support import jit

FACTORS = torch.tensor([[0.5, -2.0], [1.5, 0.25], [-0.75, 3.0]])
ROWS = torch.tensor([[0.3, -1.2], [2.0, 0.7], [-0.4, 1.1]])
BEYOND = torch.tensor([[float("inf"), 1.0], [2.0, float("nan")], [3e38, -3e38]])


def product(x: Tensor) -> Tensor:
    return (x * FACTORS).sin().mul(x[:1]).sum()


def of_a_row(x: Tensor) -> Tensor:
    return (x[0] * x[1]).exp() / x[0] - (x * FACTORS[0]).tanh().sum()


def linear(x: Tensor) -> Tensor:
    return (x * FACTORS[0]).sum()


def beside_a_constant(x: Tensor) -> Tensor:
    return torch.stack([x.sin().sum(), FACTORS[0, 0] * 2, x.prod()])


def same(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) and torch.equal(one.isnan(), other.isnan())


@pytest.mark.parametrize(
    "program",
    [
        lambda x: jacfwd(product)(x),
        lambda x: hessian(product)(x),
        lambda x: vmap(jacfwd(of_a_row))(x),
        lambda x: vmap(hessian(of_a_row))(x),
        lambda x: vmap(jacfwd(jacfwd(of_a_row)))(x),
        lambda x: vmap(hessian(linear))(x),
        lambda x: vmap(jacfwd(beside_a_constant))(x) - x.sum(),
        lambda x: jacfwd(lambda x: FACTORS * 2)(x),
    ],
    ids=["jacfwd", "hessian", "of rows", "hessians", "twice", "of nothing", "beside a constant", "of a constant"],
)
def test_derivatives_are_eagers_beside_infinities(program: Callable[[Tensor], Tensor]) -> None:
    program_ = jit(program)
    for x in (ROWS, ROWS - 2, BEYOND, ROWS * 3):
        assert same(program_(x), program(x))
    assert program_.statistics().replays == 3


def test_what_the_program_makes_on_the_device_meta_stays_there() -> None:
    def program(x: Tensor) -> Tensor:
        slopes = vmap(jacfwd(of_a_row))(x)
        return slopes * len(torch.zeros((3, 2), device="meta")) + torch.zeros((2,), device="meta").ndim

    program_ = jit(program)
    for x in (ROWS, ROWS - 2, ROWS * 3):
        assert same(program_(x), program(x))


def a_step(net: nn.Module) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = vmap(hessian(lambda row: net(row).sum()))(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def a_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))


def test_a_step_with_hessians_of_its_rows() -> None:
    net = a_net()
    twin = copy.deepcopy(net)
    eager, program = a_step(net), jit(a_step(twin))
    for factor in (1.0, -0.5, 2.0, 0.3):
        assert torch.equal(program(ROWS * factor), eager(ROWS * factor))
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), twin.parameters(), strict=True))
    assert program.statistics().replays == 3


def test_the_caller_differentiates_hessians_of_rows() -> None:
    net = a_net()
    twin = copy.deepcopy(net)

    def hessians(net: Any) -> Callable[[Tensor], Tensor]:
        return lambda x: vmap(hessian(lambda row: net(row).sum()))(x)

    eager, program = hessians(net), jit(hessians(twin))
    for factor in (1.0, -0.5, 2.0):
        for call in (eager, program):
            call(ROWS * factor).pow(2).sum().backward()
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(net[:2].parameters(), twin[:2].parameters(), strict=True))
    assert program.statistics().replays == 2


def test_a_refused_backward_warns_of_nothing_that_eager_does_not() -> None:
    weight = torch.tensor(3.0)

    class Unsaved(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * weight

    program = jit(lambda x: Unsaved.apply(x).sin(), on_refusal="eager")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            program(ROWS.clone().requires_grad_()).sum().backward()
    assert not [one for one in told if "Error detected in" in str(one.message)]


@pytest.mark.parametrize("grad", [False, True])
def test_tangents_within_tangents_are_eagers_beside_infinities(grad: bool) -> None:
    weight = nn.Parameter(FACTORS.clone())

    def along(x: Tensor) -> Tensor:
        return jvp(lambda x: (x * weight).sin(), (x,), (x * 2,))[1]

    def program(x: Tensor) -> Tensor:
        return jvp(along, (x,), (x + 1,))[1]

    program_ = jit(program)
    with torch.set_grad_enabled(grad):
        for x in (ROWS, ROWS - 2, BEYOND, ROWS * 3):
            found, expected = program_(x), program(x)
            assert same(found, expected) and found.requires_grad == grad
            if grad:
                slopes = [torch.autograd.grad(one.sum(), weight)[0] for one in (found, expected)]
                assert same(*slopes)
    assert program_.statistics().replays == 3


def test_tangents_of_parameters_that_change() -> None:
    net = a_net()
    tangents = {name: torch.full_like(p, 0.5) - p.detach() for name, p in net.named_parameters()}

    def program(x: Tensor) -> Tensor:
        call = lambda given: torch.func.functional_call(net, given, (x,))  # noqa: E731
        return jvp(call, (dict(net.named_parameters()),), (tangents,))[1]

    program_ = jit(program)
    for factor in (1.0, -0.5, 2.0):
        assert torch.equal(program_(ROWS * factor), program(ROWS * factor))
        with torch.no_grad():
            net[0].weight.sub_(0.25)
    assert program_.statistics().replays == 2


def with_its_slope(net: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    return lambda x: jvp(net, (x,), (torch.ones_like(x),))


@pytest.mark.parametrize("backward_of", [(0,), (1,), (0, 1)], ids=["values", "slopes", "both"])
def test_the_caller_differentiates_a_net_and_its_slopes(backward_of: tuple[int, ...]) -> None:
    net = a_net()
    twin = copy.deepcopy(net)
    eager, program = with_its_slope(net), jit(with_its_slope(twin))
    for factor in (1.0, -0.5, 2.0):
        for call in (eager, program):
            results = call(ROWS * factor)
            sum(results[k].pow(2).sum() * (k + 1) for k in backward_of).backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert (p.grad is None) is (q.grad is None)
        assert p.grad is None or torch.equal(p.grad, q.grad)
    assert program.statistics().replays == 2


@pytest.mark.parametrize("factor", [2.0, FACTORS[0]], ids=["a number", "a tensor"])
def test_a_slope_that_leads_to_a_parameter_by_zeros_alone_is_refused(factor: Any) -> None:
    weight = nn.Parameter(torch.tensor([1.5, -0.5]))

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        return jvp(lambda y: y * factor, (x * weight,), (torch.ones(2),))

    program_ = jit(program, on_refusal="eager")
    with pytest.warns(UserWarning, match="product with a tangent that is not there") as told:
        for x in (ROWS[0], ROWS[1], BEYOND[0]):
            slopes = [torch.autograd.grad(call(x)[1].sum(), weight)[0] for call in (program_, program)]
            assert same(*slopes)
    assert "test_zeros.py" in str(told[0].message)

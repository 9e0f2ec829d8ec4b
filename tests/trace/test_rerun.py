"""Substitution: torch functions get other tensors, the program keeps its own in its hands."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, stack_module_state, vjp, vmap

from support import assert_same, jit
from treeplay.trace.rerun import Substitution


def test_what_is_computed_is_computed_with_the_others() -> None:
    own, other = nn.Parameter(torch.ones(2, 3)), torch.full((2, 3), 5.0, requires_grad=True)
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        results = [own * 2, torch.cat([own, own]), own.T, own.data, torch.stack((own,)), own[0], torch.sum(input=own)]
        total = sum(result.sum() for result in results if result.requires_grad)
        assert not results[3].requires_grad
    assert [float(result.max()) for result in results] == [10, 5, 5, 5, 5, 5, 30]
    total.backward()
    assert own.grad is None and other.grad is not None


def test_what_is_asked_is_asked_of_the_programs_own() -> None:
    own, other = nn.Parameter(torch.ones(2)), torch.ones(2)
    own.grad = torch.full((2,), 3.0)
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        assert own.grad is not None and own.grad.tolist() == [3, 3]
        assert own.is_leaf and own.requires_grad and own in {own}


def test_a_write_gives_back_the_programs_own() -> None:
    own, other = torch.ones(2), torch.full((2,), 4.0)
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        assert own.add_(1) is own
    assert own.tolist() == [1, 1] and other.tolist() == [5, 5]


def test_other_threads_compute_with_their_own() -> None:
    own, other, seen = torch.ones(2), torch.full((2,), 4.0), []
    substitution = Substitution()
    substitution.set([own], [other])
    with substitution.mode():
        thread = threading.Thread(target=lambda: seen.append(own * 2))
        thread.start()
        thread.join()
    assert seen[0].tolist() == [2, 2]


W = torch.randn(3, 6, 4, requires_grad=True)
TRANSFORMED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "vmap": lambda x: vmap(lambda w: (x @ w).tanh() - 1)(W),
    "vmap in vmap": lambda x: vmap(lambda w: vmap(lambda row: row @ w - 1)(x))(W),
    "grad": lambda x: grad(lambda w: ((x @ w[0]) ** 3).sum())(W),
    "for each sample": lambda x: vmap(grad(lambda w, row: ((row @ w[0]) ** 3).sum()), in_dims=(None, 0))(W, x),
    "vjp": lambda x: vjp(lambda w: ((x @ w[0]) ** 3).sum(0), W)[1](torch.ones(4))[0],
    "jacrev": lambda x: jacrev(lambda w: ((x @ w[0]) ** 3).sum(0))(W),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_over_a_parameter_where_the_caller_differentiates(name: str) -> None:
    program = TRANSFORMED[name]
    jitted = jit(program)
    for _ in range(3):
        x, found = torch.randn(5, 6), []
        for run in (jitted, program):
            W.grad = None
            result = run(x)
            result.square().sum().backward()
            found.append([result.detach(), W.grad])
        assert_same(*found)
    assert jitted.statistics().replays == 2


def test_an_ensemble_where_the_caller_differentiates() -> None:
    models = [nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(3)]
    parameters, buffers = stack_module_state(models)

    def program(x: torch.Tensor) -> torch.Tensor:
        return vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)

    jitted = jit(program)
    for _ in range(3):
        x, found = torch.randn(5, 6), []
        for run in (jitted, program):
            result = run(x)
            found.append([result.detach(), *torch.autograd.grad((result - 1).square().sum(), [*parameters.values()])])
        assert_same(*found)
    assert jitted.statistics().replays == 2

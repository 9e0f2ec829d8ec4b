"""`requires_grad` of parameters that a program sets, and puts back: as adapters are switched off for a reference."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import Twins, jit
from treeplay.errors import Refusal


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.adapter = nn.Parameter(torch.randn(4, 4) * 0.1)
        self.is_on = True

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) - x @ self.adapter if self.is_on else self.base(x)

    def switch(self, on: bool) -> None:
        self.is_on = on
        self.adapter.requires_grad_(on)


def with_a_reference(gradients: bool) -> Callable[[Adapted, torch.optim.Optimizer], Callable[[Tensor], Tensor]]:
    def make(model: Adapted, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], Tensor]:
        def step(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            model.switch(False)
            with torch.set_grad_enabled(gradients):
                reference = model(x) + x @ model.adapter * 0.25
            model.switch(True)
            loss = (model(x) - reference * 0.5).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return make


@pytest.mark.parametrize("gradients", [False, True])
def test_a_step_that_switches_an_adapter_off_and_on_is_recorded(gradients: bool) -> None:
    torch.manual_seed(1)
    model = Adapted()
    pair = Twins(with_a_reference(gradients), model, torch.optim.AdamW([model.adapter], lr=0.1))
    pair.calls(4, lambda: (torch.randn(3, 4),))
    assert pair.statistics.replays == 3
    assert model.adapter.requires_grad


def test_a_parameter_that_is_frozen_outside_meanwhile_ends_up_as_in_eager() -> None:
    model = Adapted()
    pair = Twins(with_a_reference(False), model, torch.optim.SGD([model.adapter], lr=0.1), on_refusal="eager")
    for call in range(6):
        if call == 3:
            for each in (model, pair.eager_owners[0]):
                each.adapter.requires_grad_(False)
        pair.call(torch.randn(3, 4))
        assert model.adapter.requires_grad == pair.eager_owners[0].adapter.requires_grad
    assert pair.statistics.replays == 4


def test_a_program_that_leaves_it_changed_is_refused() -> None:
    weight = nn.Parameter(torch.ones(3))

    def freeze(x: Tensor) -> Tensor:
        weight.requires_grad_(False)
        return x - weight

    program = jit(freeze)
    program(torch.ones(3))
    weight.requires_grad_(True)
    with pytest.raises(Refusal, match="leaves `requires_grad` of a tensor that outlives the call") as refused:
        program(torch.ones(3))
    assert "weight.requires_grad_(False)" in str(refused.value)
    assert weight.requires_grad


def test_it_is_put_back_where_the_program_raises() -> None:
    weight = nn.Parameter(torch.ones(3))

    def failing(x: Tensor) -> Tensor:
        weight.requires_grad = False
        if x.shape[0] == 2:
            weight.requires_grad = True
            return x - weight.detach()
        return x.view(7)

    program, twin = jit(failing, on_refusal="eager"), failing
    for given in (torch.ones(2, 1), torch.ones(2, 1), torch.ones(3), torch.ones(3)):
        for call in (program, twin):
            weight.requires_grad_(True)
            if given.shape[0] == 3:
                with pytest.raises(RuntimeError, match="shape"):
                    call(given)
            else:
                call(given)
            assert weight.requires_grad is (given.shape[0] == 2)


def test_where_the_caller_differentiates_it_is_refused() -> None:
    model = Adapted()
    twin = copy.deepcopy(model)

    def program_of(model: Adapted) -> Callable[[Tensor], Any]:
        def program(x: Tensor) -> Tensor:
            model.switch(False)
            reference = model(x)
            model.switch(True)
            return (model(x) - reference * 0.5).square().mean()

        return program

    program, eager = jit(program_of(model), on_refusal="eager"), program_of(twin)
    with pytest.warns(UserWarning, match="and its results are differentiated by the caller"):
        for _ in range(3):
            x = torch.randn(3, 4)
            for call in (program, eager):
                call(x).backward()
            assert torch.equal(model.adapter.grad, twin.adapter.grad)  # type: ignore[arg-type]

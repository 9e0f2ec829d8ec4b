"""Floats among the arguments that differ from call to call are inputs of one recording, where the program computes with them.

Otherwise they are part of the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from support import assert_same, jit

VALUES = [0.5, 0.7, 0.7, 0.3, -0.0, math.inf, 0.5, 2.0, 0.25, 0.125]


def followed(program: Callable[..., Any], *, values: list[float] = VALUES, **options: Any) -> Any:
    """The program jitted, after calls that gave what eager gives."""
    jitted, x = jit(program, on_refusal="eager", **options), torch.randn(4)
    for value in values:
        assert_same(jitted(x, value), program(x, value))
    return jitted


def test_a_number_that_varies_needs_one_recording() -> None:
    found = followed(lambda x, eps: x * eps - (1 - eps) / 3).statistics()
    assert (found.recordings, found.replays) == (1, len(VALUES) - 2)
    assert found.not_replayed == {"observed": 2}


def test_a_number_by_keyword_and_with_a_default() -> None:
    def program(x: Tensor, *, scale: float = 1.5) -> Tensor:
        return x * scale - 1

    jitted, x = jit(program), torch.randn(3)
    for scale in (0.5, 0.6, 0.7, 0.8):
        assert_same(jitted(x, scale=scale), program(x, scale=scale))
    for _ in range(3):
        assert_same(jitted(x), program(x))
    assert jitted.statistics().recordings == 2


def test_a_step_whose_loss_is_weighted_anew_in_each_call() -> None:
    torch.manual_seed(3)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())

    def make(model: nn.Module) -> Callable[..., Tensor]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: Tensor, beta: float) -> Tensor:
            optimizer.zero_grad()
            out = model(x)
            loss = out.square().mean() + beta * out.abs().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    jitted, eager = jit(make(ours)), make(theirs)
    for call in range(8):
        x = torch.randn(4, 3)
        assert_same(jitted(x, call / 10), eager(x, call / 10))
    assert_same(list(ours.parameters()), list(theirs.parameters()))
    assert jitted.statistics().replays == 6


def test_a_branch_on_a_number_has_a_recording_for_each_way() -> None:
    found = followed(
        lambda x, eps: x * eps + 1 if eps > 0.4 else x - eps * 2, values=[0.5, 0.7, 0.8, 0.1, 0.2, 0.3, 0.9]
    )
    assert found.statistics().recordings == 2 and found.statistics().replays >= 3


class Keeper:
    """Keeps the number that it is given."""

    def __init__(self) -> None:
        self.last = 0.0

    def __call__(self, x: Tensor, eps: float) -> Tensor:
        self.last = eps
        return x * eps


PROGRAMS: dict[str, Callable[..., Any]] = {
    "read by math": lambda x, eps: x * math.exp(eps if eps < 5 else 0.0),
    "returned": lambda x, eps: (x + 1, eps),
    "asked for its type": lambda x, eps: x * eps if type(eps) is float else x - 1,
    "asked for its class": lambda x, eps: x * eps if isinstance(eps, float) else x - 1,
    "as text": lambda x, eps: x * len(f"{eps:.3f}"),
    "an index": lambda x, eps: x[int(min(eps, 3.0))] * 2,
    "looked up": lambda x, eps: x * {0.5: 3, 0.7: 4}.get(eps, 5),
    "dropout": lambda x, eps: torch.nn.functional.dropout(x, min(max(eps, 0.0), 0.9), training=False),
    "unread": lambda x, eps: x * 3,
    "is it None": lambda x, eps: x if eps is None else x * 2,
    "a tensor of it": lambda x, eps: x * torch.tensor(eps),
    "full of it": lambda x, eps: torch.full_like(x, eps) - x,
    "clamped": lambda x, eps: x.clamp(min=-abs(eps) if eps < 5 else -5.0),
    "a whole number of them": lambda x, eps: x * round(min(eps, 9.0)),
    "a list of it": lambda x, eps: x * [eps, 1.0][0],
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_number_whose_value_counts_is_never_stale(what: str) -> None:
    followed(PROGRAMS[what], values=[*VALUES, *VALUES])


def test_a_number_that_is_kept_is_kept_by_each_call() -> None:
    ours, theirs, x = Keeper(), Keeper(), torch.randn(3)
    jitted = jit(ours, on_refusal="eager")
    for value in [*VALUES, *VALUES]:
        assert_same(jitted(x, value), theirs(x, value))
        assert ours.last == theirs.last


def test_other_types_in_its_place_are_other_calls() -> None:
    def program(x: Tensor, eps: Any) -> Any:
        return x * eps

    jitted, x = jit(program, on_refusal="eager"), torch.arange(4)
    for value in (0.5, 0.7, 0.9, 3, True, 0.9, 4, 2 + 1j, torch.tensor(2.0), 0.1):
        for _ in range(2):
            assert_same(jitted(x, value), program(x, value))


def test_a_program_that_its_caller_differentiates_is_recorded_for_each_value() -> None:
    def program(x: Tensor, eps: float) -> Tensor:
        return (x * eps).exp()

    jitted = jit(program, on_refusal="eager")
    for value in (0.5, 0.7, 0.5, 0.7, 0.7, 0.5) * 2:
        x = torch.randn(3, requires_grad=True)
        (found,) = torch.autograd.grad(jitted(x, value).sum(), x)
        (expected,) = torch.autograd.grad(program(x, value).sum(), x)
        assert_same(found, expected)
    assert jitted.statistics().replays >= 4


def test_an_audit_of_a_recording_from_before_the_number_varied_finds_nothing() -> None:
    program: Callable[[Tensor, float], Tensor] = lambda x, eps: x * eps - 1  # noqa: E731
    jitted, x = jit(program), torch.randn(3)
    for value in [0.5] * 5 + [0.7] * 5 + [0.5] * 40 + [0.9, 0.1] * 20:
        assert_same(jitted(x, value), program(x, value))
    assert jitted.statistics().replays > 60


@pytest.mark.compile
def test_a_compiled_recording_takes_numbers_too() -> None:
    program: Callable[[Tensor, float], Tensor] = lambda x, eps: (x * eps).exp() - eps  # noqa: E731
    jitted, x = jit(program, lower="inductor"), torch.randn(5)
    for value in (0.5, 0.7, 0.7, 0.3, 0.2):
        torch.testing.assert_close(jitted(x, value), program(x, value))
    assert jitted.statistics().replays == 3

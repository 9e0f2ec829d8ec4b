"""A schedule that a step steps at its end: each replay steps it once, after the step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler as schedules

import treeplay
from support import assert_same, jit, state_of

Made = tuple[nn.Module, torch.optim.Optimizer, Any]
HOW: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 5),
    "own factor": lambda optimizer: schedules.LambdaLR(optimizer, lambda number: 0.7**number),
    "sequence": lambda optimizer: schedules.SequentialLR(
        optimizer, [schedules.LinearLR(optimizer, 0.1), schedules.ExponentialLR(optimizer, 0.5)], [3]
    ),
}


def made(how: str = "cosine", device: str = "cpu") -> Made:
    torch.manual_seed(3)
    model = nn.Linear(3, 2).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, optimizer, HOW[how](optimizer)


def stepping(made: Made) -> Callable[..., torch.Tensor]:
    model, optimizer, schedule = made

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach() * 2 - 1

    return step


def batch(device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 3, device=device), torch.randn(4, 2, device=device)


@pytest.mark.parametrize("how", HOW)
def test_each_replay_steps_it_once(how: str, device: str) -> None:
    parts, twins = made(how, device), made(how, device)
    step, eager = jit(stepping(parts)), stepping(twins)
    for _ in range(8):
        x, y = batch(device)
        found, expected = step(x, y), eager(x, y)
        if device == "cpu":
            assert_same(found, expected)
            assert_same([*state_of(*parts[:2])], [*state_of(*twins[:2])])
        else:
            torch.testing.assert_close([*parts[0].parameters()], [*twins[0].parameters()])
        assert parts[2].get_last_lr() == twins[2].get_last_lr()
        assert parts[2].last_epoch == twins[2].last_epoch
    statistics = step.statistics()
    assert (statistics.recordings, statistics.refusals) == (1, 0)
    assert statistics.replays >= 5
    assert statistics.keys[0].recordings[0].launch.stage == ("bound" if device == "cpu" else "recorded")


def test_a_schedule_that_is_loaded_goes_on_from_there() -> None:
    parts, twins = made(), made()
    step, eager = jit(stepping(parts)), stepping(twins)
    for call in range(7):
        if call == 4:
            for each in (parts, twins):
                each[2].load_state_dict({**each[2].state_dict(), "last_epoch": 1})
        x, y = batch()
        assert_same(step(x, y), eager(x, y))
    assert_same([*state_of(*parts[:2])], [*state_of(*twins[:2])])


def rate_of_schedule(made: Made) -> Any:
    return made[2].get_last_lr()[0]


def rate_of_group(made: Made) -> Any:
    return made[1].param_groups[0]["lr"]


@pytest.mark.parametrize("read", [rate_of_schedule, rate_of_group])
def test_what_reads_the_new_rate_in_the_same_step_is_refused(read: Callable[[Made], Any]) -> None:
    parts = made()
    inner = stepping(parts)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        return inner(x, y), read(parts)

    jitted = jit(step)
    jitted(*batch())
    before = copy.deepcopy(parts[2].state_dict())
    with pytest.raises(treeplay.Refusal, match="after the schedule was stepped"):
        jitted(*batch())
    assert parts[2].state_dict() == before


def test_a_schedule_that_is_stepped_first_is_refused() -> None:
    model, optimizer, schedule = made()

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        schedule.step()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    jitted = jit(step)
    jitted(*batch())
    with pytest.raises(treeplay.Refusal, match="after the schedule was stepped"):
        jitted(*batch())


def test_a_schedule_that_is_over_raises_as_in_eager() -> None:
    model, optimizer, _ = made()
    schedule = schedules.OneCycleLR(optimizer, 0.1, total_steps=5)
    step = jit(stepping((model, optimizer, schedule)))
    for _ in range(4):
        step(*batch())
    with pytest.raises(ValueError, match="Tried to step 6 times"):
        for _ in range(2):
            step(*batch())
    assert schedule.last_epoch == 6  # one step for each call, the last of which raised


def test_a_schedule_among_the_arguments_is_the_one_that_is_stepped() -> None:
    def step(schedule: Any, x: torch.Tensor) -> torch.Tensor:
        optimizer.step()
        schedule.step()
        return x * 2 - 1

    model, optimizer, _ = made()
    model(torch.ones(3)).sum().backward()
    several = [schedules.ExponentialLR(optimizer, 0.9) for _ in range(3)]
    jitted = jit(step, on_refusal="eager")
    for call in range(12):
        jitted(several[call % 3], torch.ones(2))
    assert [each.last_epoch for each in several] == [4, 4, 4]

"""Whole training steps with `torch.amp.GradScaler`: skipped steps, growth and backoff are eager's, bit for bit."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import Twins, jit

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, nesterov=False),
    "sgd foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw capturable": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    "rmsprop centered": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def scaler(**options: Any) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", **{"init_scale": 64.0, "growth_interval": 3, **options})


def batch(*, overflows: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 3)
    if overflows:
        x[1, 2] = torch.inf
    return x, torch.randn(4, 2)


def scaled(net: nn.Module, optimizer: Any, scale: Any, *, dtype: Any = torch.bfloat16, clip: bool = False) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = F.mse_loss(net(x), y)
        scale.scale(loss).backward()
        if clip:
            scale.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scale.step(optimizer)
        scale.update()
        return loss.detach()

    return step


def twins(make: Callable[..., torch.optim.Optimizer], program: Any = scaled, **options: Any) -> Twins:
    torch.manual_seed(7)
    net = model()
    return Twins(program, net, make(net.parameters()), scaler(), **options)


def overflowing(pair: Twins, seed: int, count: int = 14) -> None:
    """Calls of which some, never the first, overflow."""
    chance = random.Random(seed)
    for call in range(count):
        pair.call(*batch(overflows=call > 0 and chance.random() < 0.3))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_changes_what_it_changes_eagerly(name: str) -> None:
    pair = twins(OPTIMIZERS[name])
    overflowing(pair, seed=len(name))
    assert pair.statistics.replays == 13


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_unscaling_before_clipping(dtype: torch.dtype) -> None:
    pair = twins(OPTIMIZERS["adam"], lambda *owners: scaled(*owners, dtype=dtype, clip=True))
    overflowing(pair, seed=5)
    assert pair.statistics.replays == 13


def test_the_very_first_step_is_waited_for_if_it_is_skipped() -> None:
    """skip skip step replay ...: a recording made before there is state would make it on each call"""
    pair = twins(OPTIMIZERS["adam"])
    for call in range(8):
        pair.call(*batch(overflows=call in (0, 1, 5)))
    facts = pair.statistics
    assert (facts.eager_calls, facts.replays, facts.refusals) == (3, 5, 0)


def test_momentum_that_is_not_there_yet_is_waited_for() -> None:
    pair = twins(OPTIMIZERS["sgd momentum"])
    for call in range(8):
        pair.call(*batch(overflows=call in (0, 1, 2, 5)))
    assert (pair.statistics.eager_calls, pair.statistics.replays) == (4, 4)


def test_a_program_whose_every_step_is_skipped_is_refused_in_the_end() -> None:
    pair = twins(OPTIMIZERS["adam"], on_refusal="eager")
    for _ in range(20):
        pair.call(*batch(overflows=True))
    assert pair.statistics.refusals == 1 and "may be skipped" in pair.step.explain()


def test_growth_and_backoff_follow_eager_over_many_calls() -> None:
    pair = twins(OPTIMIZERS["sgd"])
    scales = set()
    for call in range(24):
        pair.call(*batch(overflows=call in (5, 6, 15)))
        scales.add(pair.owners[2].get_scale())
    assert len(scales) >= 4 and pair.statistics.replays == 23


def test_two_optimizers_share_a_scaler_and_only_one_is_skipped() -> None:
    def make(left: nn.Module, right: nn.Module, first: Any, second: Any, scale: Any) -> Any:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            first.zero_grad()
            second.zero_grad()
            losses = left(x).square().mean(), right(y).square().mean()
            for loss in losses:
                scale.scale(loss).backward()
            scale.step(first)
            scale.unscale_(second)
            scale.step(second)
            scale.update()
            return [loss.detach() for loss in losses]

        return step

    torch.manual_seed(3)
    left, right = nn.Linear(3, 2), nn.Linear(2, 3)
    first = torch.optim.Adam(left.parameters(), lr=0.01)
    pair = Twins(make, left, right, first, torch.optim.SGD(right.parameters(), lr=0.1, momentum=0.9), scaler())
    for call in range(12):
        x, y = batch(overflows=call in (3, 8))
        if call in (5, 8):
            y[0, 0] = torch.nan
        pair.call(x, y)
    assert pair.statistics.replays == 11


def test_state_of_a_scaler_is_saved_and_loaded_between_calls() -> None:
    pair = twins(OPTIMIZERS["adam"])
    overflowing(pair, seed=2, count=6)
    saved = pair.owners[2].state_dict()
    assert saved == pair.eager_owners[2].state_dict()
    overflowing(pair, seed=3, count=4)
    for scale in (pair.owners[2], pair.eager_owners[2]):
        scale.load_state_dict(saved)
    overflowing(pair, seed=4, count=6)
    assert pair.statistics.recordings == 1


def test_another_scale_set_between_calls_is_used() -> None:
    pair = twins(OPTIMIZERS["sgd"])
    pair.calls(3, batch)
    for scale in (pair.owners[2], pair.eager_owners[2]):
        scale.update(128.0)
    pair.calls(4, batch)
    assert pair.statistics.recordings == 1


@pytest.mark.parametrize(
    ("setting", "value"), [("growth_factor", 4.0), ("backoff_factor", 0.25), ("growth_interval", 2)]
)
def test_a_setting_of_the_scaler_is_watched(setting: str, value: Any) -> None:
    pair = twins(OPTIMIZERS["sgd"])
    pair.calls(3, batch)
    for scale in (pair.owners[2], pair.eager_owners[2]):
        getattr(scale, f"set_{setting}")(value)
    overflowing(pair, seed=1, count=9)
    assert pair.statistics.recordings == 2 and setting in pair.statistics.keys[0].rerecorded_because[0]


def test_a_scaler_that_is_off_does_nothing() -> None:
    torch.manual_seed(7)
    net = model()
    pair = Twins(scaled, net, OPTIMIZERS["adam"](net.parameters()), scaler(enabled=False))
    pair.calls(5, batch)
    assert pair.statistics.replays == 4


def test_gradients_may_be_unscaled_outside_of_the_program() -> None:
    """jitted: scale and backward; eager: unscale, clip, step, update"""

    def make(net: nn.Module, optimizer: Any, scale: Any) -> Any:
        def backward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(net(x), y)
            scale.scale(loss).backward()
            return loss.detach()

        return backward

    pair = twins(OPTIMIZERS["adam"], make)
    for call in range(7):
        pair.call(*batch(overflows=call in (2, 4)))
        for net, optimizer, scale in (pair.owners, pair.eager_owners):
            scale.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            scale.step(optimizer)
            scale.update()
    assert pair.statistics.replays == 6


def test_a_step_after_an_unscale_outside_is_right_whichever_way_it_runs() -> None:
    """eager: scale, backward, sometimes unscale; jitted: step and update"""

    def make(net: nn.Module, optimizer: Any, scale: Any) -> Any:
        def finish() -> None:
            scale.step(optimizer)
            scale.update()

        return finish

    pair = twins(OPTIMIZERS["sgd momentum"], make, on_refusal="eager")
    for call in range(10):
        x, y = batch(overflows=call in (3, 6))
        for net, optimizer, scale in (pair.owners, pair.eager_owners):
            optimizer.zero_grad()
            scale.scale(F.mse_loss(net(x), y)).backward()
            if call in (4, 6, 8):
                scale.unscale_(optimizer)
        pair.call()


@pytest.mark.parametrize("unscales", [False, True])
def test_the_scale_may_be_updated_outside_of_the_program(unscales: bool) -> None:
    """jitted: scale, backward, unscale or step; eager: the rest"""

    def make(net: nn.Module, optimizer: Any, scale: Any) -> Any:
        def begin(x: torch.Tensor, y: torch.Tensor) -> None:
            optimizer.zero_grad()
            scale.scale(F.mse_loss(net(x), y)).backward()
            scale.unscale_(optimizer)
            if not unscales:
                scale.step(optimizer)

        return begin

    pair = twins(OPTIMIZERS["adam"], make)
    for call in range(8):
        pair.call(*batch(overflows=call in (2, 5)))
        for _, optimizer, scale in (pair.owners, pair.eager_owners):
            if unscales:
                scale.step(optimizer)
            scale.update()
    assert pair.statistics.replays == 7


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizer_that_takes_the_scale_itself_keeps_torchs_way(cls: Any) -> None:
    pair = twins(lambda p: cls(p, lr=0.01, fused=True))
    if getattr(pair.owners[1], "_step_supports_amp_scaling", False):  # a copied optimizer forgets it
        pair.eager_owners[1]._step_supports_amp_scaling = True
    overflowing(pair, seed=6)
    assert pair.statistics.replays == 13


def test_random_numbers_in_a_step_that_may_be_skipped_are_refused() -> None:
    class Noisy(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for param in self.param_groups[0]["params"]:
                param.add_(torch.randn_like(param))

    pair = twins(lambda p: Noisy(p, lr=0.1))
    pair.call(*batch())
    with pytest.raises(treeplay.Refusal, match="random numbers in a step that may be skipped") as caught:
        pair.call(*batch())
    assert caught.value.where is not None


def test_state_that_each_step_rebinds_is_refused() -> None:
    class Rebinding(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for param in self.param_groups[0]["params"]:
                old = self.state[param].get("mean", torch.zeros_like(param))
                self.state[param]["mean"] = old * 0.5 + param.grad
                param.sub_(self.state[param]["mean"])

    pair = twins(lambda p: Rebinding(p, lr=0.1))
    pair.call(*batch())
    with pytest.raises(treeplay.Refusal, match="rebound in a step that may be skipped"):
        pair.call(*batch())


def test_a_scheduler_beside_the_scaler() -> None:
    pair = twins(OPTIMIZERS["adam"])
    schedules = [torch.optim.lr_scheduler.ExponentialLR(owners[1], 0.5) for owners in (pair.owners, pair.eager_owners)]
    for call in range(8):
        pair.call(*batch(overflows=call in (3, 5)))
        for schedule in schedules:
            schedule.step()
    assert pair.statistics.recordings == 1


def test_a_step_of_slices_of_one_flat_tensor_is_skipped_as_a_whole() -> None:
    """Parameters that are views of one buffer: what is put back is each slice."""

    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.flat = torch.randn(10)
            self.first = nn.Parameter(self.flat[:6].view(3, 2))
            self.second = nn.Parameter(self.flat[6:8])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.first + self.second

    class Halving(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for param in self.param_groups[0]["params"]:
                param.view(-1)[::2].mul_(0.5).sub_(param.grad.view(-1)[::2])

    def make(net: nn.Module, optimizer: Any, scale: Any) -> Any:
        return scaled(net, optimizer, scale)

    torch.manual_seed(1)
    net, eager = Flat(), Flat()
    eager.load_state_dict(net.state_dict())
    sides = [(n, Halving(n.parameters(), lr=0.1), scaler()) for n in (net, eager)]
    step, plain = jit(make(*sides[0])), make(*sides[1])
    for call in range(8):
        x, y = batch(overflows=call in (2, 5))
        assert torch.equal(step(x, y), plain(x, y)) or call in (2, 5)
        assert torch.equal(net.first, eager.first) and torch.equal(net.second, eager.second)
    assert step.statistics().replays == 7


def test_a_replaced_step_is_put_back_after_a_trace() -> None:
    before = torch.amp.GradScaler._maybe_opt_step
    twins(OPTIMIZERS["sgd"]).calls(3, batch)
    assert torch.amp.GradScaler._maybe_opt_step is before


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
def test_the_learning_rate_of_a_fused_optimizer_is_an_input(cls: Any) -> None:
    pair = twins(lambda p: cls(p, lr=0.01, fused=True))
    if getattr(pair.owners[1], "_step_supports_amp_scaling", False):
        pair.eager_owners[1]._step_supports_amp_scaling = True
    for call in range(6):
        for owners in (pair.owners, pair.eager_owners):
            owners[1].param_groups[0]["lr"] = 0.1 / (call + 1)
        pair.call(*batch(overflows=call == 3))
    assert pair.statistics.recordings == 1


# --- compiled -----------------------------------------------------------------------------------------------


FUSED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, fused=True, amsgrad=True, weight_decay=0.1),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True),
    "adagrad fused": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, fused=True),
}


@pytest.mark.compile
@pytest.mark.parametrize(
    "name",
    [
        *("sgd momentum", "adam fused"),
        *(
            pytest.param(name, marks=pytest.mark.soak)
            for name in ("adamw capturable", "adam amsgrad", *FUSED)
            if name != "adam fused"
        ),
    ],
)
def test_a_compiled_step_is_skipped_like_eager(name: str) -> None:
    """numbers are close, the scale is equal bit for bit, and what a skipped step leaves alone is left alone exactly"""
    torch.manual_seed(7)
    net = model()
    twin = copy.deepcopy(net)
    sides = [(n, (OPTIMIZERS | FUSED)[name](n.parameters()), scaler()) for n in (net, twin)]
    step, plain = (
        jit(scaled(*sides[0], clip="amsgrad" in name), lower="inductor"),
        scaled(*sides[1], clip="amsgrad" in name),
    )
    for call in range(9):
        x, y = batch(overflows=call in (3, 6))
        before = [param.detach().clone() for param in net.parameters()]
        torch.testing.assert_close(step(x, y), plain(x, y), equal_nan=True, rtol=2e-2, atol=2e-2)
        assert sides[0][2].state_dict() == sides[1][2].state_dict()
        assert any(map(torch.equal, before, net.parameters())) is (call in (3, 6))
        for mine, theirs in zip(net.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)
            torch.testing.assert_close(mine.grad, theirs.grad, equal_nan=True, rtol=5e-2, atol=2e-2)
            states = sides[0][1].state[mine], sides[1][1].state[theirs]
            torch.testing.assert_close(states[0].get("step"), states[1].get("step"))
    assert step.statistics().replays == 8

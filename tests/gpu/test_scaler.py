"""`torch.amp.GradScaler` and autocast in whole training steps on a GPU: close to eager, scale equal bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from support import jit

pytestmark = pytest.mark.gpu

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam capturable": lambda p: torch.optim.Adam(p, lr=0.01, capturable=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def scaled(net: nn.Module, optimizer: Any, scale: Any, dtype: torch.dtype, clip: float | None = None) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype):
            loss = F.mse_loss(net(x), y)
        scale.scale(loss).backward()
        if clip:
            scale.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        scale.step(optimizer)
        scale.update()
        return loss.detach()

    return step


def sides(name: str) -> list[tuple[Any, ...]]:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).cuda()
    nets = [net, copy.deepcopy(net)]
    return [
        (n, OPTIMIZERS[name](n.parameters()), torch.amp.GradScaler("cuda", init_scale=256.0, growth_interval=3))
        for n in nets
    ]


def assert_alike(mine: tuple[Any, ...], theirs: tuple[Any, ...]) -> None:
    assert mine[2].state_dict() == theirs[2].state_dict()
    for a, b in zip(mine[0].parameters(), theirs[0].parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=2e-3)
        torch.testing.assert_close(mine[1].state[a].get("step"), theirs[1].state[b].get("step"), check_device=False)


@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_step_follows_eager_through_overflows(name: str, clip: float | None, lower: str) -> None:
    mine, theirs = sides(name)
    step, plain = jit(scaled(*mine, torch.float16, clip), lower=lower), scaled(*theirs, torch.float16, clip)
    for call in range(14):
        x, y = torch.randn(4, 16, device="cuda"), torch.randn(4, 8, device="cuda")
        # Eager leaves the momentum of fused SGD uninitialized if its very first step is skipped.
        overflows = call in ((6, 9) if name == "sgd fused" else (0, 1, 6, 9))
        if overflows:
            x[1, 2] = torch.inf
        before = [param.detach().clone() for param in mine[0].parameters()]
        torch.testing.assert_close(step(x, y), plain(x, y), equal_nan=True, rtol=2e-2, atol=2e-2)
        assert all(map(torch.equal, before, mine[0].parameters())) is overflows
        assert_alike(mine, theirs)
    facts = step.statistics()
    assert facts.replays >= 10 and facts.refusals == 0 and facts.recordings == 1, step.explain()
    assert facts.keys[0].recordings[0].launch.stage == "recorded"


def test_the_scale_is_saved_and_loaded_between_replays() -> None:
    mine, theirs = sides("adamw fused")
    step, plain = jit(scaled(*mine, torch.float16)), scaled(*theirs, torch.float16)
    saved = None
    for call in range(12):
        x, y = torch.randn(4, 16, device="cuda"), torch.randn(4, 8, device="cuda")
        step(x, y), plain(x, y)
        if call == 4:
            saved = mine[2].state_dict()
        if call == 8:
            mine[2].load_state_dict(saved)
            theirs[2].load_state_dict(saved)
        assert_alike(mine, theirs)
    assert step.statistics().recordings == 1


def test_autocast_around_the_call_is_part_of_the_key() -> None:
    net = nn.Linear(16, 8).cuda()
    jitted = jit(lambda x: net(x) - 1)
    with torch.no_grad():
        for call in range(12):
            dtype = (torch.float16, torch.bfloat16, None)[call % 3]
            x = torch.randn(4, 16, device="cuda")
            with torch.autocast("cuda", dtype or torch.float16, enabled=dtype is not None):
                found, expected = jitted(x), net(x) - 1
            assert found.dtype is (dtype or torch.float32)
            torch.testing.assert_close(found, expected)
    assert len(jitted.statistics().keys) == 3


@pytest.mark.parametrize("cache", [True, False])
def test_a_step_under_autocast_around_the_call(cache: bool) -> None:
    mine, theirs = sides("sgd momentum")

    def make(net: nn.Module, optimizer: Any, _: Any) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = (net(x).float() - net(x * 2)).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    step, plain = jit(make(*mine)), make(*theirs)
    for _ in range(6):
        x = torch.randn(4, 16, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=cache):
            torch.testing.assert_close(step(x), plain(x), rtol=1e-2, atol=1e-3)
        assert_alike(mine, theirs)

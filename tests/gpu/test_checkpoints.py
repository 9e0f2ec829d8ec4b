"""Steps with dropout in checkpoints on a GPU, where dropout is one kernel: the backward drops what the forward dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treeplay
from support import assert_same

pytestmark = pytest.mark.gpu
CALLS = 6


def network(dtype: torch.dtype = torch.float32) -> nn.ModuleList:
    torch.manual_seed(3)
    return nn.ModuleList(nn.Linear(48, 48) for _ in range(3)).to("cuda", dtype)


def step_of(net: nn.ModuleList, p: float, *, reentrant: bool, autocast: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            y = F.dropout(x, 0.2)
            for layer in net:
                y = checkpoint(lambda y, layer=layer: F.dropout(layer(y), p).sin(), y, use_reentrant=reentrant)
            loss = (y * torch.linspace(0.5, 2, 48, device="cuda")).square().mean() + F.dropout(y, 0.4).sum() * 0.01
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def play(program: Any, net: nn.ModuleList) -> list[Any]:
    torch.cuda.manual_seed(11)
    told = []
    for number in range(CALLS):
        x = torch.linspace(-1, 2 + number, 40 * 48, device="cuda", dtype=net[0].weight.dtype).view(40, 48)
        loss = program(x)
        told.append((loss, [weight.detach().clone() for weight in net.parameters()], torch.cuda.get_rng_state()))
    return told


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
@pytest.mark.parametrize(
    ("dtype", "reentrant", "autocast"),
    [
        (torch.float32, False, False),
        (torch.float32, True, False),
        (torch.float32, False, True),
        (torch.float64, False, False),
        (torch.float16, False, False),
    ],
    ids=["float32", "reentrant", "autocast", "float64", "float16"],
)
def test_a_whole_step_drops_the_same_again(dtype: torch.dtype, reentrant: bool, autocast: bool, p: float) -> None:
    nets = [network(dtype), network(dtype)]
    plain, own = (step_of(net, p, reentrant=reentrant, autocast=autocast) for net in nets)
    jitted: Any = treeplay.jit(own, lower="aten", on_refusal="raise")
    rough = 2e-2 if autocast or dtype is torch.float16 else 1e-5  # in a capture, cuBLAS may add up in another order
    for found, expected in zip(play(jitted, nets[1]), play(plain, nets[0]), strict=True):
        torch.testing.assert_close(found[:2], expected[:2], rtol=rough, atol=rough / 4)
        assert torch.equal(found[2], expected[2])
    recording = jitted.statistics().keys[0].recordings[-1]
    assert recording.launch.stage == "recorded" and jitted.statistics().recordings == 1


def test_a_mask_that_is_drawn_again_is_the_same_mask() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        state = torch.cuda.get_rng_state()
        first, mask = torch.native_dropout(x, 0.3, True)
        mask.logical_not_()  # before it is drawn again
        torch.cuda.set_rng_state(state)
        second, again = torch.native_dropout(x - 3, 0.3, True)
        return first * 2, mask, second - first, again, F.dropout(x, 0.5)

    jitted: Any = treeplay.jit(program, lower="aten", on_refusal="raise")
    for number in range(CALLS):
        x, told = torch.rand(33, 7, device="cuda") - number, []
        for call in (jitted, program):
            torch.cuda.manual_seed(number)
            told.append((call(x), torch.cuda.get_rng_state()))
        assert_same(*told)
    assert jitted.statistics().keys[0].recordings[-1].launch.stage == "recorded"


def test_other_inputs_than_before_are_refused() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        state = torch.cuda.get_rng_state()
        first = F.dropout(x, 0.3)
        torch.cuda.set_rng_state(state)
        return first - F.dropout(x.t(), 0.3).t()

    check = treeplay.check(program, torch.ones(4, 6, device="cuda"))
    assert not check and "an earlier state of the generator" in str(check)

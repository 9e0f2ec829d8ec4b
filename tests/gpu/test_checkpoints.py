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


def step_of(net: nn.ModuleList, p: float, how: str, *, autocast: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    """`how`: without checkpoints ("none"), or in "reentrant" or "other" ones."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            y = F.dropout(x, 0.2)
            for layer in net:

                def part(y: torch.Tensor, layer: nn.Module = layer) -> torch.Tensor:
                    return F.dropout(layer(y), p).sin()  # type: ignore[no-any-return]

                y = part(y) if how == "none" else checkpoint(part, y, use_reentrant=how == "reentrant")
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
    ("dtype", "how", "autocast"),
    [
        (torch.float32, "other", False),
        (torch.float32, "reentrant", False),
        (torch.float32, "other", True),
        (torch.float64, "other", False),
        (torch.float16, "other", False),
    ],
    ids=["float32", "reentrant", "autocast", "float64", "float16"],
)
def test_a_whole_step_drops_the_same_again(dtype: torch.dtype, how: str, autocast: bool, p: float) -> None:
    """Bit for bit as a recorded step without checkpoints; in a capture, cuBLAS may add up in another order than eager."""
    nets = [network(dtype) for _ in range(3)]
    jitted, whole = (
        treeplay.jit(step_of(net, p, kind, autocast=autocast), lower="aten", on_refusal="raise")
        for net, kind in zip(nets, (how, "none"), strict=False)
    )
    found, without = play(jitted, nets[0]), play(whole, nets[1])
    assert_same(found, without)
    assert jitted.statistics().keys[0].recordings[-1].launch.stage == "recorded"
    assert jitted.statistics().recordings == 1
    if dtype is not torch.float16:  # in which small differences grow
        expected = play(step_of(nets[2], p, how, autocast=autocast), nets[2])
        rough = 2e-2 if autocast else 1e-3
        torch.testing.assert_close(found, expected, rtol=rough, atol=rough / 4)


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


def differentiated(net: nn.ModuleList, *, is_given: bool) -> Any:
    """A program whose caller calls backward: the checkpoint is given what it reads, or finds it."""

    def program(x: torch.Tensor) -> Any:
        def part(*given: torch.Tensor) -> torch.Tensor:
            return F.dropout(net[0](given[0] if given else x), 0.3).sin()

        return checkpoint(part, *([x] if is_given else []), use_reentrant=False)

    return program


def told(program: Any, net: nn.ModuleList) -> list[Any]:
    found = []
    for number in range(CALLS):
        torch.cuda.manual_seed(number)
        net.zero_grad()
        result = program(torch.linspace(-1, 2 + number, 40 * 48, device="cuda").view(40, 48))
        result.square().sum().backward()
        found.append((result.detach(), [p.grad for p in net[0].parameters()], torch.cuda.get_rng_state()))
    return found


def test_a_checkpoint_puts_back_the_generator_of_its_arguments_device() -> None:
    nets = [network() for _ in range(2)]
    jitted: Any = treeplay.jit(differentiated(nets[0], is_given=True), lower="aten", on_refusal="raise")
    found, expected = told(jitted, nets[0]), told(differentiated(nets[1], is_given=True), nets[1])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert jitted.statistics().recordings == 1


def test_a_checkpoint_without_arguments_puts_back_no_generator_of_a_gpu() -> None:
    """Eager's backward drops anew there."""
    nets = [network() for _ in range(2)]
    jitted: Any = treeplay.jit(differentiated(nets[0], is_given=False), lower="aten")
    with pytest.warns(UserWarning, match="does not put the generator back"):
        assert_same(told(jitted, nets[0]), told(differentiated(nets[1], is_given=False), nets[1]))
    assert jitted.statistics().recordings == 0

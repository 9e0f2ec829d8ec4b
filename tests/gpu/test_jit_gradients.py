"""Programs that the caller differentiates, on a GPU: gradients, state and errors are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import treeplay
from support.gradients import BACKWARDS, PROGRAMS, Pair, state, three, train

pytestmark = pytest.mark.gpu


def assert_launched(program: Any, *, calls: int) -> None:
    """That all calls but the first two of each key launched a recorded forward."""
    statistics = program.statistics()
    keys = len(statistics.keys)
    launches = [key.recordings[0].launch.launches for key in statistics.keys]
    assert statistics.not_replayed == {"observed": keys, "warm-up": keys}, program.explain()
    assert statistics.replays == sum(launches) == statistics.calls - 2 * keys, program.explain()
    assert statistics.calls >= calls


@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("name", ["tied", "batch norm", "custom function", "buffer in place"])
def test_a_program_and_its_gradients_are_eagers(name: str, lower: str) -> None:
    torch.manual_seed(1)
    make, owners = PROGRAMS[name]
    there = tuple(o.cuda() if isinstance(o, nn.Module) else nn.Parameter(o.detach().cuda()) for o in owners())
    pair = Pair(make, *there, lower=lower)
    pair.is_exact = False
    for _ in range(5):
        pair.act(train, torch.randn(4, 3, device="cuda", requires_grad=True))
        for a, b in zip(
            tree_leaves(list(state(pair.owners))), tree_leaves(list(state(pair.eager_owners))), strict=True
        ):
            torch.testing.assert_close(a, b)
    assert_launched(pair.jitted, calls=5)


@pytest.mark.parametrize("action", BACKWARDS, ids=lambda action: action.__name__)
def test_backward_later_in_parts_and_in_any_order_is_eagers(action: Callable[..., Any]) -> None:
    torch.manual_seed(2)
    pair = Pair(three, nn.Parameter(torch.randn(3, device="cuda")), nn.Parameter(torch.randn(3, device="cuda")))
    pair.is_exact = False
    for _ in range(4):
        pair.act(action, torch.randn(3, device="cuda"))
    assert_launched(pair.jitted, calls=4)


@pytest.mark.parametrize("eager_random", [False, True], ids=["its own numbers", "eager's numbers"])
@pytest.mark.parametrize("lower", ["aten", "inductor"])
def test_a_backward_that_leads_on_meets_the_numbers_of_its_forward(
    lower: str, eager_random: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled code draws numbers of its own; the gradient under create_graph is that of the compiled backward all the same."""
    monkeypatch.setattr(treeplay.settings, "eager_random", eager_random)
    model = nn.Sequential(nn.Linear(3, 64), nn.Tanh(), nn.Dropout(0.4), nn.Linear(64, 4), nn.Dropout(0.2)).cuda()
    program = treeplay.jit(lambda x: (model(x), x.sin() * torch.rand_like(x)), lower=lower, on_refusal="raise")
    for _ in range(5):
        x = torch.randn(4, 3, device="cuda", requires_grad=True)
        first, second = program(x)
        for total in (first.pow(2).sum() + second.exp().sum(), second.exp().sum()):
            (compiled,) = torch.autograd.grad(total, x, retain_graph=True)
            before = torch.cuda.get_rng_state()
            (slope,) = torch.autograd.grad(total, x, create_graph=True)
            assert torch.equal(torch.cuda.get_rng_state(), before)
            torch.testing.assert_close(slope, compiled)
            assert torch.autograd.grad(slope.pow(2).sum(), x, retain_graph=True)[0].isfinite().all()
    assert_launched(program, calls=5)

"""On a GPU, a program that the caller differentiates is served by its operators until both directions are compiled."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import treeplay
from support import the_recording
from support.gradients import PROGRAMS, Pair, state
from support.gradients import train as train_once
from treeplay.observe import internal_errors
from treeplay.tree.tiers import compile_thread

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def in_the_background() -> Any:
    with treeplay.settings.changed(tiers="background"):
        yield
        assert compile_thread.wait(240)


def train(model: Any, number: int) -> list[torch.Tensor]:
    """One call's result and gradients."""
    torch.manual_seed(number)
    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    for p in model.parameters():
        p.grad = None
    y = model(x)
    (y * torch.randn(3, 2, device="cuda")).sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in model.parameters())]  # type: ignore[list-item]


def test_operators_are_recorded_until_each_graph_is_compiled_and_recorded() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).cuda()
    jitted: Any = treeplay.jit(copy.deepcopy(model))
    for number in range(5):
        torch.testing.assert_close(train(jitted, number), train(model, number))
    first = the_recording(jitted)
    assert first.launch.stage == "recorded"
    assert first.lowering == "aten" or "took the place" in first.tier
    for number in range(5, 15):
        assert compile_thread.wait(240)
        torch.testing.assert_close(train(jitted, number), train(model, number))
    last = the_recording(jitted)
    assert last.lowering == "inductor" and last.launch.stage == "recorded", jitted.explain()
    assert not internal_errors()


@pytest.mark.parametrize("name", ["tied", "batch norm", "custom function", "buffer in place"])
def test_both_tiers_give_eagers_gradients(name: str) -> None:
    torch.manual_seed(1)
    make, owners = PROGRAMS[name]
    on_gpu = [o.cuda() if isinstance(o, nn.Module) else nn.Parameter(o.detach().cuda()) for o in owners()]
    pair = Pair(make, *on_gpu, lower="auto")
    for number in range(10):
        if number > 3:
            assert compile_thread.wait(240)
        pair.act(train_once, torch.randn(4, 3, device="cuda", requires_grad=number % 2 == 0))
    for found, expected in zip(state(pair.owners), state(pair.eager_owners), strict=True):
        torch.testing.assert_close(found, expected)
    assert not internal_errors()

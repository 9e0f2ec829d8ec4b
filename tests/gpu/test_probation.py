"""On a GPU, a recording stays where eager waits for its host, and goes where the GPU is busy. Nothing waits to find out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import treeplay
from support import the_recording
from treeplay.tree.answers import OUTDONE, TIMED
from treeplay.tree.tiers import compile_thread

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
CALLS = 200  # more than tiers and rounds take


@pytest.fixture(autouse=True)
def in_the_background() -> Iterator[None]:
    with treeplay.settings.changed(tiers="background"):
        yield
        assert compile_thread.wait(240)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def many(x: torch.Tensor) -> torch.Tensor:
    for _ in range(100):
        x = (x * 1.001).roll(1)
    return x


def called(jitted: Any, *args: torch.Tensor) -> None:
    for number in range(CALLS):
        jitted(*args)
        if number == 5:
            assert compile_thread.wait(240)
        if number % 20 == 0:
            torch.cuda.synchronize()  # a program's own, which lets events pass


def test_Tplus12_a_large_product_takes_what_eager_takes() -> None:
    a, b = torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 8192, device="cuda")
    jitted = treeplay.jit(product)
    called(jitted, a, b)
    found, (key,) = jitted.statistics(), jitted.statistics().keys
    assert found.not_replayed[TIMED] <= 21
    if key.recordings:  # it won, and then by more than 2 %
        assert "a call, where the program as it is takes" in key.recordings[0].worth
    else:  # calls run as they are, which takes what eager takes
        assert found.not_replayed[OUTDONE] > 0
    torch.testing.assert_close(jitted(a, b), product(a, b))


def test_Tplus12_200_small_operators_stay_recorded() -> None:
    x = torch.randn(64, device="cuda")
    jitted = treeplay.jit(many)
    called(jitted, x)
    found = jitted.statistics()
    assert the_recording(jitted).worth and OUTDONE not in found.not_replayed, jitted.explain()
    assert 0 < found.not_replayed[TIMED] <= 11 and found.replays > CALLS - 20
    torch.testing.assert_close(jitted(x), many(x))


def test_Tplus12_calls_as_they_are_leave_a_training_step_where_it_would_be() -> None:
    def a_step() -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, capturable=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, list(model.parameters())

    (step, weights), (eager, expected) = a_step(), a_step()
    jitted = treeplay.jit(step)
    for number in range(CALLS):
        x = torch.full((4, 8), number % 7 / 7, device="cuda")
        torch.testing.assert_close(jitted(x), eager(x), rtol=1e-3, atol=1e-3)
        if number == 5:
            assert compile_thread.wait(240)
    torch.testing.assert_close(weights, expected, rtol=1e-3, atol=1e-3)
    if TIMED not in jitted.statistics().not_replayed:
        pytest.xfail(f"its calls were right, and none was timed: {jitted.explain()}")

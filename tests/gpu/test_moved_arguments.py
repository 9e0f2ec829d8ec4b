"""Batches that a program moves to the GPU itself: moved in each call, before the launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from support import the_recording

pytestmark = pytest.mark.gpu


def follows(program: Callable[..., Any], batches: list[tuple[Any, ...]], *, lower: str = "aten") -> Any:
    """The jitted program, which gave eager's results and replays."""
    jitted = treeplay.jit(program, lower=lower, on_refusal="raise")
    for batch in batches:
        torch.testing.assert_close(jitted(*batch), program(*batch), rtol=1e-4, atol=1e-5)
    assert the_recording(jitted).launch.stage == "recorded", jitted.explain()
    assert jitted.statistics().replays >= len(batches) - 3
    return jitted


@pytest.mark.parametrize("lower", ["aten", "inductor"])
@pytest.mark.parametrize("is_pinned", [False, True])
def test_T44_a_batch_that_is_moved_first_of_all_is_recorded_around(lower: str, is_pinned: bool) -> None:
    weight = torch.randn(8, 4, device="cuda")

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.to("cuda", non_blocking=is_pinned), y.cuda(non_blocking=is_pinned)
        return F.cross_entropy(x @ weight - 0.5, y, reduction="none") * 2 - x.sum(1)

    batches = [(torch.randn(16, 8), torch.randint(4, (16,))) for _ in range(8)]
    if is_pinned:
        batches = [(x.pin_memory(), y.pin_memory()) for x, y in batches]
    follows(program, batches, lower=lower)


def test_a_whole_step_moves_its_batch() -> None:
    def made() -> tuple[nn.Module, Callable[..., torch.Tensor]]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            batch = {name: value.to("cuda") for name, value in batch.items()}
            loss = F.cross_entropy(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return model, step

    (ours, step), (theirs, eager) = made(), made()
    jitted = treeplay.jit(step, lower="aten", on_refusal="raise")
    for _ in range(10):
        batch = {"x": torch.randn(16, 8), "y": torch.randint(4, (16,))}
        torch.testing.assert_close(jitted(batch), eager(batch), rtol=1e-4, atol=1e-5)
    assert the_recording(jitted).launch.stage == "recorded"
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_results_are_apart_from_a_batch_that_is_written_after_the_call() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda") * 3 - 1

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    x = torch.empty(1000)
    results = []
    for number in range(12):
        x.fill_(number)  # one buffer, filled anew for each call
        results.append(jitted(x))
    assert [result[0].item() for result in results] == [number * 3 - 1 for number in range(12)]
    assert the_recording(jitted).launch.stage == "recorded"


def test_what_is_moved_may_be_written_there() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.to("cuda")
        x.mul_(2).sub_(1)
        return x

    follows(program, [(torch.randn(5),) for _ in range(8)])


def test_slices_with_holes_are_moved_without_them() -> None:
    whole = torch.randn(8, 6, 10)

    def program(x: torch.Tensor) -> torch.Tensor:
        moved = x.to("cuda")
        return moved.cumsum(0) - moved.flip(1)

    follows(program, [(whole[number].t()[:, ::2],) for number in range(8)])


def test_arrays_are_moved_too() -> None:
    weight = torch.randn(8, 4, device="cuda")

    def act(batch: dict[str, np.ndarray]) -> torch.Tensor:
        x = torch.as_tensor(batch["x"], dtype=torch.float32, device="cuda")
        return (x @ weight).argmax(-1)

    follows(act, [({"x": np.random.randn(16, 8)},) for _ in range(8)])


def test_a_batch_that_is_on_the_gpu_already_has_a_recording_of_its_own() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.to("cuda") * 3 - 1

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    for number in range(12):
        x = torch.full((4,), float(number), device="cpu" if number % 2 else "cuda")
        assert jitted(x).tolist() == [number * 3 - 1] * 4
    assert jitted.statistics().recordings == 2

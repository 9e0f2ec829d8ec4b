"""`AveragedModel.update_parameters` inside of a recorded step: its first update copies, later ones average."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from support import assert_same, jit, state_of

HOW: dict[str, dict[str, Any]] = {
    "mean": {},
    "own": {"avg_fn": lambda average, value, count: (average * count - value) / (count + 2)},
    "buffers": {"use_buffers": True},
}


def made(device: str) -> nn.Module:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device)
    if device == "cuda":  # where eager's average of all buffers at once divides whole numbers, and raises
        model[1].register_buffer("num_batches_tracked", None)
    return model


def averaging(model: nn.Module, average: Any, optimizer: Any) -> Callable[..., torch.Tensor]:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss.detach()

    return step


@pytest.mark.parametrize("how", HOW)
def test_an_average_of_weights_is_kept(how: str, device: str) -> None:
    model = made(device)
    parts = model, AveragedModel(model, device=torch.device(device), **HOW[how])
    others = copy.deepcopy(parts)
    optimizers = [torch.optim.SGD(each[0].parameters(), lr=0.1) for each in (parts, others)]
    step, eager = jit(averaging(*parts, optimizers[0])), averaging(*others, optimizers[1])
    for call in range(8):
        if call == 5:  # starts over: the next update copies
            parts[1].n_averaged.zero_()
            others[1].n_averaged.zero_()
        x, y = torch.randn(5, 3, device=device), torch.randn(5, 2, device=device)
        found, expected = step(x, y), eager(x, y)
        if device == "cpu":
            assert_same(found, expected)
            assert_same([*state_of(*parts)], [*state_of(*others)])
        else:
            torch.testing.assert_close(
                [*parts[1].buffers(), *parts[1].parameters()], [*others[1].buffers(), *others[1].parameters()]
            )
    statistics = step.statistics()
    assert (statistics.recordings, statistics.refusals) == (1, 0)
    assert statistics.replays >= 5

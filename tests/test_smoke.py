"""One program of each kind against eager: what `make compat` runs with each release of torch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from treeplay.torch_compile import backend


def made() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(5, 4), torch.randint(3, (5,))) for _ in range(count)]


def step_of(net: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    return step


def test_a_whole_step() -> None:
    net = made()
    twin = copy.deepcopy(net)
    step, eager = treeplay.jit(step_of(net), lower="aten"), step_of(twin)
    for x, y in batches(5):
        assert torch.equal(step(x, y), eager(x, y))
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)
    assert step.statistics().replays >= 3


def test_a_program_that_the_caller_differentiates() -> None:
    net = made()
    twin = copy.deepcopy(net)
    forward = treeplay.jit(lambda x: net(x) * 2 - 1, lower="aten")
    for x, y in batches(4):
        for loss in (F.cross_entropy(forward(x), y), F.cross_entropy(twin(x) * 2 - 1, y)):
            loss.backward()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad)
    assert forward.statistics().refusals == 0


def test_training_through_torch_compile() -> None:
    net = made()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend=backend, options={"inner": "aten"})
    for x, y in batches(4):
        for run in (compiled, twin):
            F.cross_entropy(run(x), y).backward()
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad)
    assert {"forward", "backward"} <= {report.direction for report in treeplay.graph_reports()}


def test_an_explicit_graph() -> None:
    x, total = torch.ones(4), torch.zeros(())
    recorded = treeplay.graphs.Graph(device="cpu")
    with treeplay.graphs.graph(recorded):
        y = x * 2 - 1
        total.add_(y.sum())
    x.fill_(3)
    recorded.replay()
    recorded.replay()
    assert y.tolist() == [5.0] * 4 and total == 40

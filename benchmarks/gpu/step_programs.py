"""Training steps with the eager optimizer in each way: what `peaks` measures the memory of, and `steps` the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import treeplay
from benchmarks.backend.zoo import find_model
from benchmarks.gpu.models import perceptron
from treeplay.torch_compile import backend

Step = Callable[..., torch.Tensor]
Feeds = list[tuple[dict[str, Any], torch.Tensor]]
_FEEDS = 6


class ActorCritic(nn.Module):
    """A policy and a value of one trunk, with PPO's loss of a minibatch: observations, then actions, old logs and returns."""

    def __init__(self, observation: int = 64, actions: int = 8, width: int = 256) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(observation, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.policy, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(
        self, input: torch.Tensor, actions: torch.Tensor, old_logs: torch.Tensor, returns: torch.Tensor
    ) -> torch.Tensor:
        hidden = self.trunk(input)
        logs, value = F.log_softmax(self.policy(hidden), -1), self.value(hidden)[:, 0]
        ratio = (logs.gather(1, actions[:, None])[:, 0] - old_logs).exp()
        advantage = returns - value.detach()
        gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        entropy = -(logs.exp() * logs).sum(-1).mean()
        return F.mse_loss(value, returns) - gain - 0.01 * entropy


def _autoencoder() -> nn.Module:
    down = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 3, 2, 1)]
    up = [
        nn.ConvTranspose2d(128, 64, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1),
    ]
    return nn.Sequential(*down, *up)


def make(name: str, device: torch.device) -> tuple[nn.Module, Feeds, Step]:
    """A model, what it is called with in turn, and the loss of a result."""
    torch.manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    if name == "mlp12x4096":
        feeds: Feeds = [({"input": normal(4096, 4096)}, normal(4096, 4096))]
        return nn.Sequential(*perceptron(12, 4096, nn.GELU), nn.GELU()).to(device), feeds, F.mse_loss
    if name == "mlp16x256":
        feeds = [({"input": normal(32, 256)}, normal(32, 256)) for _ in range(_FEEDS)]
        return nn.Sequential(*perceptron(16, 256), nn.ReLU()).to(device), feeds, F.mse_loss
    if name == "autoencoder":
        images = [normal(16, 3, 64, 64) for _ in range(_FEEDS)]
        return _autoencoder().to(device), [({"input": image}, image) for image in images], F.mse_loss
    if name == "actor-critic":
        feeds = [
            ({"input": normal(256, 64), "actions": torch.randint(8, (256,), device=device)} | _told(normal), normal(1))
            for _ in range(_FEEDS)
        ]
        return ActorCritic().to(device), feeds, lambda loss, _: loss
    found = find_model(name)
    feeds = [(feed.inputs, feed.target) for feed in found.feeds("published", device, _FEEDS)]
    return found.make("published", device, training=True), feeds, found.loss


def _told(normal: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"old_logs": normal(256) - 2, "returns": normal(256)}


def step_of(name: str, way: str) -> tuple[Step, Feeds]:
    """A training step in one way, and what it is called with, in turn."""
    model, feeds, loss_of = make(name, torch.device("cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    run: Any = model
    if way == "backend":
        run = torch.compile(model, backend=backend)
    elif way == "reduce-overhead":
        run = torch.compile(model, mode="reduce-overhead")

    def step(inputs: dict[str, Any], target: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(run(**inputs), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return treeplay.jit(step) if way.startswith("jit") else step, feeds

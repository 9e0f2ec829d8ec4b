"""SAC: both critics, the actor, the temperature and the target networks in one recording.

python examples/sac.py
"""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import treeplay

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
treeplay.settings.eager_random = (
    True  # compiled code draws eager's numbers, so that this program can compare itself with eager
)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([obs, action], 1)).flatten()


class Actor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 4))

    def get_action(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.net(obs).chunk(2, 1)
        # On a GPU, the validation would wait for its answer in each call.
        normal = torch.distributions.Normal(mean, log_std.tanh().exp(), validate_args=False)
        raw = normal.rsample()
        action = raw.tanh()
        return action, (normal.log_prob(raw) - torch.log(1 - action.square() + 1e-6)).sum(1)


def train(jit: Callable[..., Any]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    actor, q1, q2 = Actor().to(device), Critic().to(device), Critic().to(device)
    targets = copy.deepcopy(nn.ModuleList([q1, q2]))
    log_alpha = torch.zeros(1, requires_grad=True, device=device)
    q_optimizer = torch.optim.Adam([*q1.parameters(), *q2.parameters()], lr=1e-3)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
    alpha_optimizer = torch.optim.Adam([log_alpha], lr=1e-3)

    @jit
    def update(
        obs: torch.Tensor, action: torch.Tensor, reward: torch.Tensor, following: torch.Tensor, done: torch.Tensor
    ) -> torch.Tensor:
        with torch.no_grad():
            alpha = log_alpha.exp()  # without `.item()`
            next_action, next_log_pi = actor.get_action(following)
            value = torch.min(*(target(following, next_action) for target in targets)) - alpha * next_log_pi
            expected = reward + (1 - done) * 0.99 * value
        q_loss = F.mse_loss(q1(obs, action), expected) + F.mse_loss(q2(obs, action), expected)
        q_optimizer.zero_grad()
        q_loss.backward()
        q_optimizer.step()

        pi, log_pi = actor.get_action(obs)
        actor_loss = (alpha * log_pi - torch.min(q1(obs, pi), q2(obs, pi))).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()

        alpha_loss = (-log_alpha.exp() * (log_pi.detach() - 2)).mean()
        alpha_optimizer.zero_grad()
        alpha_loss.backward()
        alpha_optimizer.step()

        with torch.no_grad():
            for critic, target in zip((q1, q2), targets, strict=True):
                for own, other in zip(critic.parameters(), target.parameters(), strict=True):
                    other.lerp_(own, 0.005)
        return torch.stack([q_loss.detach(), actor_loss.detach(), alpha_loss.detach()])

    for _ in range(20):
        obs, action, following = torch.randn(8, 3), torch.rand(8, 2) * 2 - 1, torch.randn(8, 3)
        reward, done = torch.randn(8), torch.randint(2, (8,)).float()
        update(*(part.to(device) for part in (obs, action, reward, following, done)))
    return nn.ModuleList([actor, q1, q2, targets]), update


modules, update = train(treeplay.jit)
eager, _ = train(lambda program: program)
torch.testing.assert_close([*modules.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)
print(f"replayed {update.statistics().replays} of {update.statistics().calls} calls")

"""PPO in the style of CleanRL: acting and updating are two recordings.

python examples/ppo.py
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

import treeplay

ENVIRONMENTS, STEPS, UPDATES, EPOCHS, MINIBATCHES = 4, 16, 4, 2, 4
CLIP, GAMMA, LAMBDA = 0.2, 0.99, 0.95
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
treeplay.settings.eager_random = (
    True  # compiled code draws eager's numbers, so that this program can compare itself with eager
)


class Points:
    """Environments that give NumPy arrays, as Gymnasium's vector environments do: points that are to be moved to the origin."""

    def __init__(self) -> None:
        self.at = np.random.default_rng(0).normal(size=(ENVIRONMENTS, 2)).astype(np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.at = self.at * 0.9 + 0.1 * np.tanh(action)
        return self.at, -np.square(self.at).sum(1)


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor_mean = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
        self.actor_logstd = nn.Parameter(torch.zeros(1, 2))

    def get_action_and_value(self, x: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        mean = self.actor_mean(x)
        # On a GPU, the validation would wait for its answer in each call.
        probs = Normal(mean, self.actor_logstd.expand_as(mean).exp(), validate_args=False)
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action).sum(1), probs.entropy().sum(1), self.critic(x).flatten()


def train(jit: Callable[..., Any]) -> tuple[Agent, list[Any]]:
    torch.manual_seed(0)
    agent = Agent().to(device)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)

    @jit
    def act(obs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return agent.get_action_and_value(obs)

    @jit
    def update(
        obs: torch.Tensor,
        actions: torch.Tensor,
        logprobs: torch.Tensor,
        advantages: torch.Tensor,
        returns: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs, actions)
        logratio = newlogprob - logprobs
        ratio = logratio.exp()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        policy = torch.max(-advantages * ratio, -advantages * torch.clamp(ratio, 1 - CLIP, 1 + CLIP)).mean()
        loss = policy - 0.01 * entropy.mean() + 0.25 * (newvalue - returns).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        # What CleanRL reads with `.item()` is returned and read after the call.
        return loss.detach(), ((ratio - 1) - logratio).mean().detach()

    environments = Points()
    next_obs = torch.as_tensor(environments.at, device=device)
    for number in range(UPDATES):
        optimizer.param_groups[0]["lr"] = 2.5e-4 * (1 - number / UPDATES)  # an input, so there is no new recording
        kept = []
        for _ in range(STEPS):
            action, logprob, _, value = act(next_obs)
            observed, reward = environments.step(action.cpu().numpy())
            kept.append((next_obs, action, logprob, value, torch.as_tensor(reward, device=device)))
            next_obs = torch.as_tensor(observed, device=device)  # outside of the programs: arrays become tensors
        obs, actions, logprobs, values, rewards = map(torch.stack, zip(*kept, strict=True))
        advantages, following, last = torch.zeros_like(rewards), act(next_obs)[3], torch.zeros_like(rewards[0])
        for t in reversed(range(STEPS)):
            last = rewards[t] + GAMMA * following - values[t] + GAMMA * LAMBDA * last
            advantages[t], following = last, values[t]
        batch = [part.flatten(0, 1) for part in (obs, actions, logprobs, advantages, advantages + values)]
        for _ in range(EPOCHS):
            for chosen in torch.randperm(STEPS * ENVIRONMENTS, device=device).chunk(MINIBATCHES):
                _loss, _kl = update(*[part[chosen] for part in batch])
    return agent, [act, update]


agent, programs = train(treeplay.jit)
eager, _ = train(lambda program: program)
torch.testing.assert_close([*agent.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)
found = [program.statistics() for program in programs]
print(f"replayed {sum(each.replays for each in found)} of {sum(each.calls for each in found)} calls")

"""Batches that are a `TensorDict`: the step reads them, and adds to them, as it would eagerly.

pip install 'treeplay[models]'; python examples/tensordict_batches.py
"""

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn

import treeplay

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(jit: Callable[..., Any]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    policy = TensorDictModule(net, in_keys=["observation"], out_keys=["logits"]).to(device)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)

    @jit
    def step(batch: TensorDict) -> torch.Tensor:
        optimizer.zero_grad()
        batch = policy(batch)
        loss = nn.functional.cross_entropy(batch["logits"], batch["action"])
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(30):
        parts = {"observation": torch.randn(8, 4), "action": torch.randint(3, (8,))}
        step(TensorDict(parts, batch_size=[8], device=device))
    return policy, step


policy, step = train(treeplay.jit)
eager, _ = train(lambda program: program)
torch.testing.assert_close([*policy.parameters()], [*eager.parameters()], rtol=1e-3, atol=1e-4)
print(f"replayed {step.statistics().replays} of {step.statistics().calls} calls")

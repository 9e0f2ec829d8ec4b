"""A step with gradient accumulation and an average of the weights; the schedule is stepped after it.

python examples/averages.py
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import treeplay

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def train(jit: Callable[..., Any]) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3)).to(device)
    # `device`: the average counts its updates in a tensor, which is on the CPU if nothing is said.
    average = AveragedModel(model, device=device, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=5)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, decay], milestones=[5])

    @jit
    def step(micro_batches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for x, y in micro_batches:  # all of them in one call: one launch, and no counter that Python reads
            loss = nn.functional.cross_entropy(model(x), y) / len(micro_batches)
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)
        return total

    for _ in range(20):
        step([(torch.randn(8, 4, device=device), torch.randint(3, (8,), device=device)) for _ in range(4)])
        schedule.step()  # after the step: it changes Python's numbers, which a replay reads and does not change
    return average, step


average, step = train(treeplay.jit)
eager, _ = train(lambda program: program)
torch.testing.assert_close(average.state_dict(), eager.state_dict(), rtol=1e-3, atol=1e-4)
print(f"replayed {step.statistics().replays} of {step.statistics().calls} calls")

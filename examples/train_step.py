"""A whole training step as one recording: forward, loss, backward and the optimizer's update.

python examples/train_step.py
"""

import torch
from torch import nn

import treeplay

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"  # the same step is recorded on either
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=1000)


# The step is written as it would be without treeplay. The model, the optimizer and its state are found by themselves,
# and are updated in place: `model.state_dict()` can be saved at any time.
@treeplay.jit
def step(points: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(points), targets)
    loss.backward()
    optimizer.step()
    return loss


for number in range(1000):
    points = torch.rand(64, 2, device=device) * 2 - 1
    loss = step(points, torch.sin(3 * points).prod(1, keepdim=True))
    schedule.step()  # outside of the step: the learning rate is an input of the recording, like the batch
    if number % 250 == 0 or number == 999:
        print(f"step {number:4d}  loss {loss.item():.5f}")  # values are read outside of the step, too

# One recording served all calls but the first, which ran eagerly.
print(step.explain())

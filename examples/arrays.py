"""NumPy arrays from a data source: they become tensors before the call.

python examples/arrays.py
"""

import copy

import numpy as np
import torch
from torch import nn

import treeplay

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)).to(device)
twin = copy.deepcopy(model)


@treeplay.jit
def act(observation: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(observation.float()).argmax(-1)


source = np.random.default_rng(0)
for _ in range(50):
    observation = source.normal(size=(5, 4))
    # `as_tensor` shares the array's memory on a CPU and copies it to a GPU. An array itself is refused, and runs eagerly:
    # nothing tells what a program reads of it.
    action = act(torch.as_tensor(observation, device=device)).cpu().numpy()  # arrays again, after the call
    expected = twin(torch.as_tensor(observation, device=device).float()).argmax(-1).cpu().numpy()
    np.testing.assert_array_equal(action, expected)
print(f"replayed {act.statistics().replays} of {act.statistics().calls} calls")

"""NumPy arrays from a data source: as arguments, and in a batch, which is a dictionary.

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
def act(observation: np.ndarray | torch.Tensor) -> torch.Tensor:
    # What NumPy would compute with an argument (`observation / 2`) is done by torch: a replay runs no Python.
    with torch.no_grad():
        return model(torch.as_tensor(observation, dtype=torch.float32, device=device) / 2).argmax(-1)


@treeplay.jit
def evaluate(batch: dict[str, np.ndarray | torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return nn.functional.cross_entropy(model(torch.as_tensor(batch["x"])), torch.as_tensor(batch["y"]))


source = np.random.default_rng(0)
for _ in range(25):
    observation = source.normal(size=(5, 4))
    # On a CPU arrays may be arguments. A program on a GPU is given tensors that are there.
    action = act(observation if device.type == "cpu" else torch.as_tensor(observation, device=device))
    expected = twin(torch.as_tensor(observation, dtype=torch.float32, device=device) / 2).argmax(-1)
    np.testing.assert_array_equal(action.cpu().numpy(), expected.cpu().numpy())  # arrays again, after the call

    arrays = {"x": source.normal(size=(5, 4)).astype(np.float32), "y": source.integers(3, size=5)}
    batch = {name: torch.as_tensor(array, device=device) for name, array in arrays.items()}
    loss = evaluate(arrays if device.type == "cpu" else batch)
    torch.testing.assert_close(loss, nn.functional.cross_entropy(twin(batch["x"]), batch["y"]))

found = act.statistics(), evaluate.statistics()
print(f"replayed {sum(each.replays for each in found)} of {sum(each.calls for each in found)} calls")

"""A module under treeplay: called as before, recorded once for each shape of its arguments.

python examples/inference.py
"""

from time import perf_counter

import torch
from torch import nn

import treeplay

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"  # the same program is recorded on either
model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU()))).to(device).eval()

# The jitted module has the class, the parameters and the state_dict of `model`: both see every later change.
fast = treeplay.jit(model)


def microseconds(module: nn.Module, x: torch.Tensor, calls: int = 2000) -> float:
    """The mean time of a call."""
    start = perf_counter()
    for _ in range(calls):
        out = module(x)
    out.sum().item()  # a GPU is done when a value is there
    return (perf_counter() - start) / calls * 1e6


with torch.no_grad():
    x = torch.randn(1, 64, device=device)
    for _ in range(3):  # the first call runs eagerly, the second records, the third is replayed
        out = fast(x)
    torch.testing.assert_close(out, model(x))
    print(f"eager {microseconds(model, x):.0f} µs, treeplay {microseconds(fast, x):.0f} µs per call")

    # Results are ordinary tensors: later calls do not change them.
    kept = fast(x)
    fast(torch.randn(1, 64, device=device))
    torch.testing.assert_close(kept, out)

    # Another shape has another recording. Weights that change in place are seen by both.
    for _ in range(3):
        fast(torch.randn(16, 64, device=device))
    model[0].weight.mul_(2)
    torch.testing.assert_close(fast(x), model(x))

print(fast.explain())

"""treeplay records what a PyTorch program does on a device once, and replays it for the price of one launch.

import treeplay

@treeplay.jit
def step(x, y):
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
"""

from treeplay import graphs
from treeplay.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureFailed,
    InternalError,
    LoweringError,
    Refusal,
    TreeplayError,
    UsageError,
)
from treeplay.program import Jitted, jit, reset
from treeplay.settings import settings

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CaptureFailed",
    "InternalError",
    "Jitted",
    "LoweringError",
    "Refusal",
    "TreeplayError",
    "UsageError",
    "graphs",
    "jit",
    "reset",
    "settings",
]

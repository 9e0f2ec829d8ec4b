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

from typing import TYPE_CHECKING, Any

from treeplay import torch_seam

torch_seam.require()  # first: what follows would end in an error that names a part of torch and nothing else

from treeplay import graphs
from treeplay.api import jit, reset
from treeplay.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureFailed,
    InternalError,
    LoweringError,
    Refusal,
    StaleRecordingWarning,
    TreeplayError,
    UsageError,
)
from treeplay.program import Jitted
from treeplay.settings import settings

if TYPE_CHECKING:
    from treeplay.backend.account import graph_reports
    from treeplay.report.explain import explain

__version__ = "0.1.0"

_OF_BACKEND = {"explain": "treeplay.report.explain", "graph_reports": "treeplay.backend.account"}


def __getattr__(name: str) -> Any:
    """What belongs to the backend of `torch.compile`, which is imported when it is first used: that takes seconds."""
    import importlib

    if name in _OF_BACKEND:
        return getattr(importlib.import_module(_OF_BACKEND[name]), name)
    raise AttributeError(f"module 'treeplay' has no attribute {name!r}")


__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CaptureFailed",
    "InternalError",
    "Jitted",
    "LoweringError",
    "Refusal",
    "StaleRecordingWarning",
    "TreeplayError",
    "UsageError",
    "explain",
    "graph_reports",
    "graphs",
    "jit",
    "reset",
    "settings",
]

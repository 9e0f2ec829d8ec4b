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

from treeplay.errors import (
    ArgumentError,
    ArgumentTypeError,
    CaptureFailed,
    InternalError,
    LoweringError,
    Refusal,
    StaleOutput,
    StaleRecordingWarning,
    TreeplayError,
    UsageError,
)
from treeplay.settings import settings

if TYPE_CHECKING:
    from treeplay import graphs, observe
    from treeplay.api import jit, reset
    from treeplay.backend.account import graph_reports
    from treeplay.program import Jitted
    from treeplay.report.check import check
    from treeplay.report.explain import explain

__version__ = "0.1.0"

# Imported when they are first used: torch takes seconds, the backend of `torch.compile` as long again, and the command tells
# its version without either.
_HOMES = {
    "Jitted": "treeplay.program",
    "check": "treeplay.report.check",
    "explain": "treeplay.report.explain",
    "graph_reports": "treeplay.backend.account",
    "jit": "treeplay.api",
    "reset": "treeplay.api",
}
_PARTS = ("graphs", "observe")


def __getattr__(name: str) -> Any:
    import importlib

    if name in _PARTS:
        return importlib.import_module(f"treeplay.{name}")
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
    raise AttributeError(f"module 'treeplay' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})


__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CaptureFailed",
    "InternalError",
    "Jitted",
    "LoweringError",
    "Refusal",
    "StaleOutput",
    "StaleRecordingWarning",
    "TreeplayError",
    "UsageError",
    "check",
    "explain",
    "graph_reports",
    "graphs",
    "jit",
    "observe",
    "reset",
    "settings",
]

"""Finds the line that is running: the user's, or the innermost that is not plumbing, torch's own included."""

from __future__ import annotations

import os
import sys
from types import FrameType

import torch

from treeplay.observe.lines import is_own, is_users, user_location

__all__ = ["call_site", "innermost_is_optimizer", "is_own", "is_users", "user_location"]

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep


def innermost_is_optimizer() -> bool:
    """Whether the innermost frame outside of treeplay belongs to `torch.optim`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OURS):
            if file.startswith(os.path.join(_TORCH, "optim")):
                return True
            if not file.startswith(_TORCH):
                return False
        frame = frame.f_back
    return False


_PLUMBING = tuple(
    _TORCH + part
    for part in ("_compile.py", "_dynamo", "_ops.py", "overrides.py", "_tensor.py", "utils/_python_dispatch.py")
)


def call_site() -> tuple[str, int]:
    """File and line of the innermost Python code that asked for the running operator, torch's own code included."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_OURS, "<treeplay", *_PLUMBING)):
            return file, frame.f_lineno
        frame = frame.f_back
    return "", 0

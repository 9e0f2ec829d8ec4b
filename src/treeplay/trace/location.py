"""Finds the line of the user's source that is running: the innermost frame that is neither torch's nor ours."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from types import FrameType

import torch

from treeplay.facts.location import Location

_TORCH = os.path.dirname(torch.__file__) + os.sep
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_SITE = tuple({sysconfig.get_paths()["purelib"] + os.sep, sysconfig.get_paths()["platlib"] + os.sep})


@lru_cache(maxsize=4096)
def is_users(file: str) -> bool:
    """Whether a source file is the user's or a third party's, not torch's, ours or the standard library's."""
    if file.startswith(("<frozen", "<treeplay", "<string>", _TORCH, _OURS)):
        return False
    return file.startswith(_SITE) or not file.startswith(_STDLIB)


@lru_cache(maxsize=4096)
def is_own(file: str) -> bool:
    """Whether a source file is the user's own, not that of an installed package."""
    return is_users(file) and not file.startswith(_SITE)


def user_location() -> Location | None:
    """Where the user's program is right now, or None outside of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return Location(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


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

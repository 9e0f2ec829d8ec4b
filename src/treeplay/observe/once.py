"""Say a thing once: warnings that would otherwise repeat with every call."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Hashable
from pathlib import Path
from types import FrameType

import torch

from treeplay.locks import shared_lock

KEPT_TEXTS = 4096
"""How many texts are remembered, those seen last; one that was forgotten may be said again."""

# What a context manager of ours raises and warns comes through `contextlib`.
_OUR_FOLDERS = (f"{Path(__file__).parents[1]}{os.sep}", f"{Path(torch.__file__).parent}{os.sep}", contextlib.__file__)
_OUR_PACKAGES = ("treeplay", "torch")


class SeenKeys:
    """Which keys were seen, at most `limit` of them, forgetting first the one not seen for longest."""

    def __init__(self, limit: int = KEPT_TEXTS) -> None:
        self._limit = limit
        self._keys: OrderedDict[Hashable, None] = OrderedDict()
        self._lock = shared_lock()  # a finalizer may warn while another warning is noted

    def add(self, key: Hashable) -> bool:
        """Note that `key` was seen now; whether it is new."""
        with self._lock:
            is_new = key not in self._keys
            self._keys[key] = None
            self._keys.move_to_end(key)
            if len(self._keys) > self._limit:
                self._keys.popitem(last=False)
            return is_new

    def clear(self) -> None:
        """Forget all keys."""
        with self._lock:
            self._keys.clear()


warned = SeenKeys()


def warn_once(text: str, *, category: type[Warning] = UserWarning) -> None:
    """Warn of `text` the first time in this process, and never again whatever the warning filters say.

    The warning names the line that called into treeplay: the nearest frame outside treeplay and torch.
    """
    if warned.add(text):
        warn_here(text, category=category)


def warn_here(text: str, *, category: type[Warning] = UserWarning) -> None:
    """Warn of `text` each time, at the line that called into treeplay."""
    frame = _users_frame()
    warnings.warn_explicit(
        text,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "<unknown>"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def _users_frame() -> FrameType:
    frame = sys._getframe(1)
    while _is_ours(frame) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _is_ours(frame: FrameType) -> bool:
    # By file and by module: generated code has no file of ours, and a module run as a script no name of ours.
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _OUR_PACKAGES or frame.f_code.co_filename.startswith(_OUR_FOLDERS)

"""Say a thing once: warnings that would otherwise repeat with every call."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from types import FrameType

from treeplay.observe.lines import OURS, TORCH, is_user_file, own_location

KEPT_TEXTS = 4096
"""How many texts are remembered, those seen last; one that was forgotten may be said again."""

# What a context manager of ours raises and warns comes through `contextlib`.
_OUR_FOLDERS = (OURS, TORCH, contextlib.__file__)
_OUR_PACKAGES = ("treeplay", "torch")


@lru_cache(maxsize=KEPT_TEXTS)
def times_said(text: str) -> Iterator[int]:
    """Counts how often `text` was to be said, for as long as it is remembered."""
    return count()


def warn_once(text: str, *, category: type[Warning] = UserWarning) -> None:
    """Warn of `text` the first time in this process, and never again whatever the warning filters say.

    The warning names the line that called into treeplay: the nearest frame outside treeplay and torch.
    """
    if next(times_said(text)) == 0:
        warn_here(text, category=category)


def warn_here(text: str, *, category: type[Warning] = UserWarning) -> None:
    """Warn of `text` each time, at the line that called into treeplay."""
    frame = _users_frame()
    own = own_location() if not is_user_file(frame.f_code.co_filename) else None
    if own is not None and str(own) not in text:
        text = f"{text}\n  from    {own}"
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

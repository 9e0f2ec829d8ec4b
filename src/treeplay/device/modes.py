"""The error modes of a capture, by name; a host device checks the name and does nothing more with it."""

from __future__ import annotations

from treeplay.errors import ArgumentError

ERROR_MODES = ("global", "thread_local", "relaxed")
"""An unsafe CUDA call breaks the capture if it comes from: any thread, the capturing thread, nobody."""


def check_error_mode(mode: str) -> None:
    """`ArgumentError` for anything but one of the three names."""
    if mode not in ERROR_MODES:
        names = ", ".join(repr(name) for name in ERROR_MODES)
        raise ArgumentError(f"capture_error_mode: expected one of {names}, found {mode!r}")

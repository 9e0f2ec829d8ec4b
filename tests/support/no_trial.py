"""Recordings for all sizes without the trial in which calls go to their program too."""

from __future__ import annotations

from typing import Any


class NoTrial:
    """Says at once that a recording for all sizes is faster."""

    def is_for_program(self, sizes: Any) -> bool:
        return False

    def took(self, seconds: float, sizes: Any, *, is_program: bool) -> None:
        pass

    def verdict(self) -> tuple[bool, str]:
        return True, "no trial"

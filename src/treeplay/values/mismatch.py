"""Why a call could not replay a recording: only what differs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The first thing that differs: what it is, what was recorded and what was found."""

    what: str
    recorded: str
    found: str

    def is_about(self, other: Mismatch) -> bool:
        """Whether it names the place of `other`, or a part of it."""
        rest = self.what.removeprefix("length of ").removeprefix(other.what.removeprefix("length of "))
        return rest != self.what.removeprefix("length of ") and rest[:1] in ("", ".", "[")

    def __str__(self) -> str:
        return f"{self.what}: {self.found}, recorded with {self.recorded}"

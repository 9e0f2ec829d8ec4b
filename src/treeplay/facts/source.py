"""A function as text: what an emitter gives and a loader compiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """`text` defines a function called `entry`; `names` are the values that its free names stand for."""

    name: str
    text: str
    names: dict[str, Any] = field(repr=False)
    entry: str = "run"

    def __str__(self) -> str:
        return self.text

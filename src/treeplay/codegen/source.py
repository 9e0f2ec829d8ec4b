"""Generated code as a value: text, the objects it names, and which function of it to call."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Source:
    """Python text that defines the function `entry`; `names` are the globals it needs beside the builtins.

    `name` says what it is (`aten`); a loader makes a unique file name of it.
    """

    name: str
    text: str
    names: dict[str, Any] = field(repr=False)
    entry: str
    launched: int = 0  # the number of the last line of its launch, in a function that launches something

    def __str__(self) -> str:
        return f"{self.name}: {self.text.count(chr(10))} lines, {len(self.names)} names"

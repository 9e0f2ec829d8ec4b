"""A place in somebody's source."""

from __future__ import annotations

import linecache
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Location:
    """One line of the user's source: file, line number (from 1) and the name of the function it is in.

    `called_from`: of a line of an installed library, the user's own line that led there. It does not count in comparisons.
    """

    file: str
    line: int
    function: str = ""
    called_from: Location | None = field(default=None, compare=False)

    @property
    def source(self) -> str:
        """The text of the line, or an empty string where the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        suffix = f" in {self.function}" if self.function else ""
        return f"{self.file}:{self.line}{suffix}"

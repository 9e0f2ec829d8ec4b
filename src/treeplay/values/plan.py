"""What the plan stage decides about a traced program, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """How to lower a graph, and why.

    `lowerings`: in the order in which they are tried. `shared`: pairs of inputs that share memory, one of them written.
    `is_small`: no operator is worth a second thread.
    """

    lowerings: tuple[str, ...]
    why: str
    shared: tuple[tuple[int, int], ...] = ()
    is_small: bool = False

    def __str__(self) -> str:
        return f"{' then '.join(self.lowerings)}: {self.why}"

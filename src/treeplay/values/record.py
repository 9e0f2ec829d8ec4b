"""What is kept of one recording being made, for `treeplay.observe.records()`."""

from __future__ import annotations

from dataclasses import dataclass

from treeplay.values.location import Location


@dataclass(frozen=True, slots=True)
class RecordingMade:
    """One recording, or a refusal: seconds per stage, and for a refusal why and where. Unknown values are None."""

    program: str
    arguments: str
    kind: str | None
    lowering: str | None
    plan: str | None
    operators: int | None
    seconds: tuple[tuple[str, float], ...]
    refusal: str | None = None
    where: Location | None = None

    def __str__(self) -> str:
        outcome = f"refused: {self.refusal}" if self.refusal else f"{self.kind}, {self.lowering}"
        return f"{self.program}({self.arguments}): {outcome}, {sum(seconds for _, seconds in self.seconds):.2f} s"

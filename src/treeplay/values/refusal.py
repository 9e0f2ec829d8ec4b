"""Why a program cannot be recorded."""

from __future__ import annotations

from dataclasses import dataclass

from treeplay.values.location import Location


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason not to record: the operation, the user's line, what happened and how to fix it."""

    op: str
    why: str
    advice: str
    where: Location | None = None
    may_pass: bool = False
    """Whether it is about how two calls differ, which ends where a history is full or a warm-up over."""

    def __str__(self) -> str:
        lines = [f"{self.op}: {self.why}"]
        if self.where is not None:
            lines += _shown("at", self.where)
            if self.where.called_from is not None:
                lines += _shown("from", self.where.called_from)
        lines.append(f"  fix:    {self.advice}")
        return "\n".join(lines)


def _shown(word: str, where: Location) -> list[str]:
    return [f"  {word:<8}{where}", *([f"          {where.source}"] if where.source else [])]

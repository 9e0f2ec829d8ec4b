"""A snapshot of what a graphed callable has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallableStatistics:
    """`recordings` were made and `kept` are there still; eager calls by reason."""

    label: str
    recordings: int
    kept: int
    replays: int
    copied_tensors: int
    eager_calls: int
    eager_because: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.label}: {self.recordings} recordings, {self.replays} replays, {self.copied_tensors} tensors copied in, "
            f"{self.eager_calls} eager calls"
        )

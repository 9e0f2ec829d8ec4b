"""What a call has to keep so that it can be taken back, should one of its operators fail on the values it meets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InRange:
    """Input `index` holds indices: operators take those from 0 to below `size`, and `ignored`."""

    index: int
    size: int
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class ToKeep:
    """The inputs that may have been written when an operator fails, and whether random numbers may have been drawn.

    `unless`: where it is given and all of it holds, no operator can fail, and nothing has to be kept.
    """

    written: tuple[int, ...] = ()
    draws: bool = False
    unless: tuple[InRange, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Whether an operator that fails leaves everything as it was."""
        return not (self.written or self.draws)

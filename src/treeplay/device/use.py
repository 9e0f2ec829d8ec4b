"""What a recording is worth: the time that its calls save, for each byte that it holds. Old calls count less.

    value = calls, of which one counts half after some hundreds of others, × seconds that a launch saves / bytes

Pure. Whoever counts has a clock that goes by calls: `now` is how many there were, of all recordings it counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

SAVED_BY_OPERATOR = 3e-6
"""Seconds that a launch saves for each operator or node, where nothing was measured: what it takes to issue one."""
_HALF_LIFE = 512  # calls
_MARGIN = 1.25
"""How much more a recording that was let go has to be worth than those that would go for it: each is made anew at a price."""


@dataclass(eq=False, slots=True)
class Use:
    """How much one recording is used, also while it is let go."""

    saved: float = SAVED_BY_OPERATOR  # seconds by a call that is launched, as far as is known
    nbytes: int = 1  # that it holds, or held the last time
    shared: int = 0  # of these, what lies where that of others does
    _score: float = 0.0
    _when: int = 0

    def called(self, times: int, now: int) -> None:
        """Note calls that have just been."""
        self._score, self._when = self._at(now) + times, now

    def value(self, now: int) -> float:
        """What it is worth."""
        return self._at(now) * self.saved / max(1, self.nbytes)

    def _at(self, now: int) -> float:
        return float(self._score * 0.5 ** ((now - self._when) / _HALF_LIFE))


def bytes_together(uses: Iterable[Use]) -> int:
    """What recordings hold together: of what they share, as much as the one that shares most."""
    known = list(uses)
    return sum(use.nbytes - use.shared for use in known) + max((use.shared for use in known), default=0)


def dearer(use: Use, others: Iterable[Use], now: int) -> list[Use]:
    """Those that a recording which was let go has to leave in their places."""
    value = use.value(now)
    return [other for other in others if _MARGIN * other.value(now) > value]

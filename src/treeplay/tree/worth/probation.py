"""Probation: whether a recording is worth having. Calls go to it and to its program, as it is, and are timed.

    launches ─▶ a round: calls of the program as it is, then of the recording ┬▶ faster by the round's margin: it stays
                   ▲                                                          ├▶ slower by it: it goes
                   └────── too close: a longer round, a smaller margin ◀──────┘  after the last one: it goes

Each call runs once, by one of the two. The first round is short: a recording that takes half the time costs four slow calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from treeplay.device.protocol import Stopwatch
from treeplay.tree.worth.pace import MARGIN, Pace, Timing

_ROUNDS = ((2, 0.3), (5, 0.1), (8, MARGIN))  # how many calls of each are timed, and the margin then
_UNTIMED = 2  # calls of each before those: caches, and memory that the program takes again
_LAUNCHES_BEFORE = 32  # calls of a recording before its first round
_ASKED_AGAIN_AFTER = 8  # calls, for times that a device could not tell yet


class ProbationStep(Enum):
    """What is next for a recording on probation."""

    AS_IT_IS = "a call of the program as it is"
    RECORDED = "a call of the recording"
    STAYS = "it stays"
    GOES = "it is dropped"


class Probation:
    """Of one recording. For threads that hold the program's lock."""

    def __init__(self, watch: Callable[[], Stopwatch]) -> None:
        self.due = _LAUNCHES_BEFORE  # calls of the recording
        self.told = ""  # what was found
        self.saved = 0.0  # seconds by a call of the recording
        self._watch = watch
        self._rounds = deque(_ROUNDS)
        self._margin = 0.0  # of the newest round
        self._left: deque[tuple[ProbationStep, bool]] = deque()  # calls of the round, and whether they are timed
        self._timings: dict[ProbationStep, list[Timing]] = {ProbationStep.AS_IT_IS: [], ProbationStep.RECORDED: []}

    @property
    def has_begun(self) -> bool:
        """Whether there has been a round."""
        return len(self._rounds) < len(_ROUNDS)

    @property
    def is_under_way(self) -> bool:
        """Whether the next call belongs to a round."""
        return bool(self._left)

    def put_off(self, calls: int) -> None:
        """Have the first round begin later: the recording has been called so often."""
        self.due = calls + max(_LAUNCHES_BEFORE, calls // 4)

    def next(self, calls: int) -> ProbationStep | None:
        """What is next for the recording, which has been called so often; None for a call like any other."""
        if not self._left:
            if calls < self.due:
                return None
            if self.has_begun:
                if not self._is_known():
                    self.due = calls + _ASKED_AGAIN_AFTER
                    return None
                decided = self._decided()
                if decided is not None:
                    return decided
            self._begin_round()
        return self._left[0][0]

    def take(self) -> Timing:
        """Take the call that is next: it is to run in this block."""
        step, is_timed = self._left.popleft()
        timing = Timing(self._watch())
        if is_timed:
            self._timings[step].append(timing)
        return timing

    def _begin_round(self) -> None:
        timed, self._margin = self._rounds.popleft()
        for step in self._timings:
            self._left += [(step, False)] * _UNTIMED + [(step, True)] * timed

    def _is_known(self) -> bool:
        return all(timing.device() is not None for timings in self._timings.values() for timing in timings)

    def _decided(self) -> ProbationStep | None:
        """Whether it stays; None after a round that is too close."""
        eager, ours = (Pace.of(self._timings[step]) for step in (ProbationStep.AS_IT_IS, ProbationStep.RECORDED))
        if eager is None or ours is None:
            self.told = "it could not be timed"
            return ProbationStep.STAYS
        self.told = f"{ours} a call, where the program as it is takes {eager}"
        self.saved = max(0.0, eager.seconds - ours.seconds)
        if ours.beats(eager, self._margin):
            return ProbationStep.STAYS
        is_first = len(self._rounds) == len(_ROUNDS) - 1  # which is too short to drop anything for
        return ProbationStep.GOES if not self._rounds or (not is_first and eager.beats(ours, self._margin)) else None

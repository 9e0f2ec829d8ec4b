"""What to do with a call that no recording fits. Pure: facts in, action out.

NEW ── observe ──▶ OBSERVED ── record ──▶ RECORDED ── (state reassigned) ── observe ──▶ OBSERVED ...
                        └── refused ──▶ REFUSED: eager; tried again later if the reason may pass, or a value changed
EAGER: under a mode in which nothing is recorded     OUTDONE: the program as it is was as fast; tried again later
EVICTED: its recording went, since memory is for others that save more; recorded again once it would save more

A call may be recorded once it was observed with the same plain values (flags, numbers) in the program's reach; with other
values it is observed anew. So is one whose trace was given another number than the observed call, once: a setting may have
changed where no value is watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class KeyPhase(Enum):
    """Where one key of a program stands."""

    NEW = "new"
    OBSERVED = "observed"
    RECORDED = "recorded"
    REFUSED = "refused"
    EAGER = "eager"
    OUTDONE = "as fast unrecorded"
    EVICTED = "over the memory budget"


class Action(Enum):
    """What the manager does with the call."""

    OBSERVE = "run eagerly and note what it does"
    RECORD = "trace, compare, lower, record, and run the recording"
    RUN_EAGERLY = "run eagerly"
    REFUSE = "run eagerly from now on: it was recorded too often"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What the decision depends on."""

    phase: KeyPhase
    is_observed: bool = False  # there is a log of a call with the plain values of this one
    rerecordings: int = 0
    most_rerecordings: int = 8


def decide(facts: CallFacts) -> Action:
    """The action for a call that no recording of its key fits."""
    match facts.phase:
        case KeyPhase.NEW:
            return Action.OBSERVE
        case KeyPhase.REFUSED | KeyPhase.EAGER | KeyPhase.OUTDONE | KeyPhase.EVICTED:
            return Action.RUN_EAGERLY
        case KeyPhase.OBSERVED | KeyPhase.RECORDED:
            if facts.is_observed:
                return Action.RECORD
            return Action.REFUSE if facts.rerecordings >= facts.most_rerecordings else Action.OBSERVE

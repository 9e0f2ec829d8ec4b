"""The table of decisions, all of it."""

from __future__ import annotations

import pytest

from treeplay.tree.decide import Action, CallFacts, KeyPhase, decide

NEW, OBSERVED, RECORDED, REFUSED, EAGER, OUTDONE, EVICTED = KeyPhase
OBSERVE, RECORD, RUN_EAGERLY, REFUSE = Action

TABLE = [
    # phase   observed rerecordings action        of 8 that are allowed
    (NEW, False, 0, OBSERVE),
    (NEW, False, 7, OBSERVE),
    (NEW, False, 8, OBSERVE),
    (NEW, False, 9, OBSERVE),
    (NEW, True, 0, OBSERVE),
    (NEW, True, 7, OBSERVE),
    (NEW, True, 8, OBSERVE),
    (NEW, True, 9, OBSERVE),
    (OBSERVED, False, 0, OBSERVE),
    (OBSERVED, False, 7, OBSERVE),
    (OBSERVED, False, 8, REFUSE),
    (OBSERVED, False, 9, REFUSE),
    (OBSERVED, True, 0, RECORD),
    (OBSERVED, True, 7, RECORD),
    (OBSERVED, True, 8, RECORD),
    (OBSERVED, True, 9, RECORD),
    (RECORDED, False, 0, OBSERVE),
    (RECORDED, False, 7, OBSERVE),
    (RECORDED, False, 8, REFUSE),
    (RECORDED, False, 9, REFUSE),
    (RECORDED, True, 0, RECORD),
    (RECORDED, True, 7, RECORD),
    (RECORDED, True, 8, RECORD),
    (RECORDED, True, 9, RECORD),
    (REFUSED, False, 0, RUN_EAGERLY),
    (REFUSED, False, 8, RUN_EAGERLY),
    (REFUSED, False, 9, RUN_EAGERLY),
    (REFUSED, True, 0, RUN_EAGERLY),
    (REFUSED, True, 8, RUN_EAGERLY),
    (REFUSED, True, 9, RUN_EAGERLY),
    (EAGER, False, 0, RUN_EAGERLY),
    (EAGER, False, 8, RUN_EAGERLY),
    (EAGER, False, 9, RUN_EAGERLY),
    (EAGER, True, 0, RUN_EAGERLY),
    (EAGER, True, 8, RUN_EAGERLY),
    (EAGER, True, 9, RUN_EAGERLY),
    (OUTDONE, False, 0, RUN_EAGERLY),
    (OUTDONE, False, 8, RUN_EAGERLY),
    (OUTDONE, False, 9, RUN_EAGERLY),
    (OUTDONE, True, 0, RUN_EAGERLY),
    (OUTDONE, True, 8, RUN_EAGERLY),
    (OUTDONE, True, 9, RUN_EAGERLY),
    (EVICTED, False, 0, RUN_EAGERLY),
    (EVICTED, False, 8, RUN_EAGERLY),
    (EVICTED, False, 9, RUN_EAGERLY),
    (EVICTED, True, 0, RUN_EAGERLY),
    (EVICTED, True, 8, RUN_EAGERLY),
    (EVICTED, True, 9, RUN_EAGERLY),
]


@pytest.mark.parametrize(("phase", "is_observed", "rerecordings", "action"), TABLE)
def test_T10_the_decision(phase: KeyPhase, is_observed: bool, rerecordings: int, action: Action) -> None:
    facts = CallFacts(phase, is_observed, rerecordings, most_rerecordings=8)
    assert decide(facts) is decide(facts) is action


def test_every_phase_is_in_the_table() -> None:
    combinations = {row[:2] for row in TABLE}
    assert combinations == {(phase, is_observed) for phase in KeyPhase for is_observed in (False, True)}
    assert {row[3] for row in TABLE} == set(Action) and len(TABLE) == len({row[:3] for row in TABLE}) >= 30

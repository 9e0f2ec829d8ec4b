"""The table of decisions, all of it."""

from __future__ import annotations

import pytest

from treeplay.tree.decide import Action, CallFacts, KeyPhase, decide

TABLE = [
    #  phase           observed  rerecordings  action
    (KeyPhase.NEW, False, 0, Action.OBSERVE),
    (KeyPhase.NEW, False, 8, Action.OBSERVE),
    (KeyPhase.NEW, True, 0, Action.OBSERVE),
    (KeyPhase.OBSERVED, True, 0, Action.RECORD),
    (KeyPhase.OBSERVED, True, 8, Action.RECORD),
    (KeyPhase.OBSERVED, False, 7, Action.OBSERVE),
    (KeyPhase.OBSERVED, False, 8, Action.REFUSE),
    (KeyPhase.RECORDED, True, 0, Action.RECORD),
    (KeyPhase.RECORDED, True, 9, Action.RECORD),
    (KeyPhase.RECORDED, False, 7, Action.OBSERVE),
    (KeyPhase.RECORDED, False, 8, Action.REFUSE),
    (KeyPhase.REFUSED, False, 0, Action.RUN_EAGERLY),
    (KeyPhase.REFUSED, True, 9, Action.RUN_EAGERLY),
    (KeyPhase.EAGER, False, 0, Action.RUN_EAGERLY),
]


@pytest.mark.parametrize(("phase", "is_observed", "rerecordings", "action"), TABLE)
def test_the_decision(phase: KeyPhase, is_observed: bool, rerecordings: int, action: Action) -> None:
    assert decide(CallFacts(phase, is_observed, rerecordings, most_rerecordings=8)) is action


def test_every_phase_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == set(KeyPhase)
    assert {row[3] for row in TABLE} == set(Action)

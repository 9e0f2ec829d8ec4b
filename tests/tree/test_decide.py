"""The table of decisions, all of it."""

from __future__ import annotations

import pytest

from treeplay.tree.decide import Action, CallFacts, Phase, decide

TABLE = [
    #  phase           observed  rerecordings  action
    (Phase.NEW, False, 0, Action.OBSERVE),
    (Phase.NEW, False, 8, Action.OBSERVE),
    (Phase.NEW, True, 0, Action.OBSERVE),
    (Phase.OBSERVED, True, 0, Action.RECORD),
    (Phase.OBSERVED, True, 8, Action.RECORD),
    (Phase.OBSERVED, False, 7, Action.OBSERVE),
    (Phase.OBSERVED, False, 8, Action.REFUSE),
    (Phase.RECORDED, True, 0, Action.RECORD),
    (Phase.RECORDED, True, 9, Action.RECORD),
    (Phase.RECORDED, False, 7, Action.OBSERVE),
    (Phase.RECORDED, False, 8, Action.REFUSE),
    (Phase.REFUSED, False, 0, Action.RUN_EAGERLY),
    (Phase.REFUSED, True, 9, Action.RUN_EAGERLY),
    (Phase.EAGER, False, 0, Action.RUN_EAGERLY),
]


@pytest.mark.parametrize(("phase", "is_observed", "rerecordings", "action"), TABLE)
def test_the_decision(phase: Phase, is_observed: bool, rerecordings: int, action: Action) -> None:
    assert decide(CallFacts(phase, is_observed, rerecordings, most_rerecordings=8)) is action


def test_every_phase_is_in_the_table() -> None:
    assert {row[0] for row in TABLE} == set(Phase)
    assert {row[3] for row in TABLE} == set(Action)

"""Who records just now, as other threads see it."""

from __future__ import annotations

import torch

from support import assert_same, jit
from treeplay.trace.turn import turn
from treeplay.tree.recorders import Recorders, recorders


def test_a_thread_that_records_disturbs_others_until_it_is_done() -> None:
    made = Recorders()
    before = made.now()
    assert not made.disturbed(before)
    with made:
        assert made.disturbed(made.now()) and made.disturbed(before)
        assert not made.others(made.now())
        with made:
            assert made.others(made.now())
    assert made.disturbed(before) and not made.disturbed(made.now())


def test_a_trace_counts_too() -> None:
    before = recorders.now()
    with turn():
        assert recorders.disturbed(recorders.now())
    assert recorders.disturbed(before) and not recorders.disturbed(recorders.now())


def test_a_call_that_misses_meanwhile_runs_eagerly_and_blames_nobody() -> None:
    table = {"scale": 2.0}
    jitted = jit(lambda x: x * table["scale"] - 1)
    for _ in range(3):
        jitted(torch.ones(2))
    table["scale"] = 3.0
    with recorders:
        assert_same(jitted(torch.ones(2)), torch.full((2,), 2.0))
    table["scale"] = 2.0
    assert_same(jitted(torch.ones(2)), torch.ones(2))
    made = jitted.statistics()
    assert (made.recordings, made.replays, made.eager_calls) == (1, 3, 2)
    assert made.keys[0].rerecorded_because == ()

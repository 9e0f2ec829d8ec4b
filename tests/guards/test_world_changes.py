"""Random worlds that change between calls give what eager gives; `benchmarks/worlds.py` runs many more of them."""

from __future__ import annotations

import math

import pytest
import torch

from support.worlds import Outcome, difference, make_world, run, run_world, shrink

pytestmark = pytest.mark.programs

BLOCK = 25
FIRST = 1_000_000  # seeds that the benchmark does not reach


def told(outcome: Outcome) -> str:
    """A stale world as small as it gets, with what was found."""
    world = shrink(make_world(outcome.seed))
    return f"run_world({outcome.seed}) is stale: {outcome.stale}\n\nas small as it gets: {run(world).stale}\n{world}"


@pytest.mark.parametrize("block", [*range(3), *(pytest.param(k, marks=pytest.mark.soak) for k in range(3, 20))])
def test_worlds_that_change_between_calls(block: int) -> None:
    outcomes = [run_world(FIRST + block * BLOCK + k) for k in range(BLOCK)]
    stale = [outcome for outcome in outcomes if outcome.stale is not None]
    assert not stale, f"{len(stale)} of {BLOCK} worlds\n{told(stale[0])}"
    calls, replays = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("calls", "replays"))
    assert replays >= 0.3 * calls, "too few of the calls are replayed to prove anything"
    assert sum(outcome.refusals > 0 for outcome in outcomes) <= 0.5 * BLOCK, "too many worlds are refused"


def test_a_world_is_the_same_for_the_same_seed() -> None:
    assert make_world(11) == make_world(11)
    assert run_world(11) == run_world(11)
    assert make_world(11) != make_world(12)


def test_a_difference_is_found_and_named() -> None:
    assert difference({"a": [1.0, torch.ones(2)]}, {"a": [1.0, torch.ones(2)]}, "state") is None
    assert difference(torch.tensor([math.nan]), torch.tensor([math.nan]), "result") is None
    for found, expected in (
        (0.0, -0.0),
        (1, True),
        (None, 0.0),
        ([1.0], (1.0,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.ones(2), torch.ones(2).double()),
        (torch.ones(2), torch.ones(1)),
        ("KeyError", torch.ones(1)),
    ):
        assert difference(found, expected, "result") is not None
        assert "state['k'][0]" in (difference({"k": [found]}, {"k": [expected]}, "state") or "")

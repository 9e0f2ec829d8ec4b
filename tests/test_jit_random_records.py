"""Random programs over nested records beside eager, with random changes between their calls."""

from __future__ import annotations

import pytest

from support.record_programs import run_program

ONCE_STALE = [6, 41, 47, 62, 84, 204, 226]


@pytest.mark.parametrize("seed", [*range(5), *ONCE_STALE])
def test_random_programs_over_records(seed: int) -> None:
    run_program(seed)


@pytest.mark.soak
@pytest.mark.parametrize("start", range(1000, 1500, 50))
def test_many_random_programs_over_records(start: int) -> None:
    replays = [run_program(seed)[0] for seed in range(start, start + 50)]
    assert sum(map(bool, replays)) > 40

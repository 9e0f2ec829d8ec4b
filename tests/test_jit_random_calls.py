"""Random programs of up to 30 calls over random functions, beside eager; a device under recordings is the only difference."""

from __future__ import annotations

from collections import Counter
from time import monotonic

import pytest

from support.random_calls import check_program

PROGRAMS, IN_ONE_TEST = 200, 25

pytestmark = pytest.mark.filterwarnings("ignore:treeplay")


def check_counts(counts: Counter[str]) -> None:
    """All that is to happen has, and most calls were replayed."""
    assert not [what for what in counts if what.startswith("errors")], counts
    assert counts["replays"] > counts["call"] / 3 and counts["refusals"] < counts["call"] / 20, counts
    assert all(counts[what] for what in ("backward", "forget", "change", "fail")), counts


FIRST, *LATER = range(0, PROGRAMS, IN_ONE_TEST)


@pytest.mark.parametrize("first", [FIRST, *(pytest.param(seed, marks=pytest.mark.soak) for seed in LATER)])
def test_Tplus8_random_programs_are_eagers(first: int) -> None:
    counts = sum((check_program(seed) for seed in range(first, first + IN_ONE_TEST)), Counter())
    check_counts(counts)
    assert counts["stage bound"] and not counts["stage recorded"]


def check_recorded(counts: Counter[str]) -> None:
    """What was called often enough is launched as a graph."""
    check_counts(counts)
    assert counts["stage recorded"] and counts.keys().isdisjoint({"stage not recorded", "stage bound"}), counts


@pytest.mark.gpu
def test_Tplus8_random_programs_are_eagers_on_a_gpu() -> None:
    check_recorded(sum((check_program(seed, "cuda") for seed in range(IN_ONE_TEST)), Counter()))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_Tplus8_ten_minutes_of_random_programs_are_eagers(device: str) -> None:
    counts: Counter[str] = Counter()
    end, seed = monotonic() + 600, PROGRAMS
    while monotonic() < end:
        counts += check_program(seed, device)
        seed += 1
    check_counts(counts) if device == "cpu" else check_recorded(counts)

"""The check that written inputs share memory with no other one, call after call."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from treeplay.errors import PatternChanged
from treeplay.wrap.aot.calls import checks
from treeplay.wrap.aot.calls.checks import AllApart

NAMES = {at: f"x{at}" for at in range(6)}


def passes(check: AllApart, args: list[torch.Tensor]) -> bool:
    try:
        check(args)
    except PatternChanged:
        return False
    return True


def made(lengths: Sequence[int | None]) -> AllApart:
    return AllApart((0, 2), (1, 3, 4, 5), lengths, NAMES)


@pytest.mark.parametrize("is_measured", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_a_check_of_what_moved_finds_what_a_check_of_all_does(seed: int, is_measured: bool) -> None:
    chance = random.Random(seed)
    memory = torch.arange(400.0)
    sizes: list[int | None] = [chance.choice([12, 20, 60]) for _ in range(6)]  # bytes, in the order of the check
    lengths = [None] * 6 if is_measured else sizes

    def anywhere(k: int) -> torch.Tensor:
        start, step, elements = chance.randrange(350), chance.choice([1, 1, 3]), chance.choice([5, 5, 15])
        if not is_measured:
            step, elements = 1, (sizes[(0, 2, 1, 3, 4, 5).index(k)] or 0) // 4
        return memory[start : start + step * elements : step]

    check = made(lengths)
    args = [anywhere(k) for k in range(6)]
    found = []
    for _ in range(60):
        for at in chance.sample(range(6), chance.choice([1, 1, 1, 2, 6])):
            args[at] = anywhere(at)
        found.append(passes(check, args))
        assert found[-1] == passes(made(lengths), args)
    assert True in found and False in found


def test_a_batch_that_moves_is_measured_against_weights_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []
    length = checks.length
    monkeypatch.setattr(checks, "length", lambda tensor: measured.append(tensor) or length(tensor))
    memory = torch.arange(100.0)
    weights, check = [torch.ones(8) for _ in range(5)], AllApart((1,), (0, 2, 3, 4, 5), (32, 80, *[32] * 4), NAMES)
    for start in range(5):
        check([memory[start : start + 20], *weights])
    assert not measured
    with pytest.raises(PatternChanged, match="x0 and x1 share memory"):
        check([weights[0], *weights])
    check([memory[30:50], *weights])
    with pytest.raises(PatternChanged, match="x0 and x1 share memory"):
        check([memory[30:50], memory[48:56], *weights[1:]])


def test_one_that_is_longer_than_in_the_last_call_is_found_where_it_lies_as_before() -> None:
    memory = torch.arange(100.0)
    check = AllApart((1,), (0, 2), (None, None, 32), NAMES)
    check([memory[:8], memory[10:18], memory[40:48]])
    with pytest.raises(PatternChanged, match="x0 and x1 share memory"):
        check([memory[:12], memory[10:18], memory[40:48]])

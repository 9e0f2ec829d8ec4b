"""The check that written inputs share memory with no other one, call after call."""

from __future__ import annotations

import random
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


@pytest.mark.parametrize("seed", range(40))
def test_a_check_of_what_moved_finds_what_a_check_of_all_does(seed: int) -> None:
    chance = random.Random(seed)
    memory = torch.arange(400.0)

    def anywhere() -> torch.Tensor:
        start, step, elements = chance.randrange(350), chance.choice([1, 1, 3]), chance.choice([5, 5, 15])
        return memory[start : start + step * elements : step]

    check = AllApart((0, 2), (1, 3, 4, 5), NAMES)
    args = [anywhere() for _ in range(6)]
    found = []
    for _ in range(60):
        for at in chance.sample(range(6), chance.choice([1, 1, 1, 2, 6])):
            args[at] = anywhere()
        found.append(passes(check, args))
        assert found[-1] == passes(AllApart((0, 2), (1, 3, 4, 5), NAMES), args)
    assert True in found and False in found


def test_a_batch_that_moves_is_measured_against_weights_that_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Any] = []
    length = checks.length
    monkeypatch.setattr(checks, "length", lambda tensor: measured.append(tensor) or length(tensor))
    memory = torch.arange(100.0)
    weights, check = [torch.ones(8) for _ in range(5)], AllApart((1,), (0, 2, 3, 4, 5), NAMES)
    for start in range(5):
        check([memory[start : start + 20], *weights])
    assert len(measured) == 6
    with pytest.raises(PatternChanged, match="x0 and x1 share memory"):
        check([weights[0], *weights])
    check([memory[30:50], *weights])
    with pytest.raises(PatternChanged, match="x0 and x1 share memory"):
        check([memory[30:50], memory[48:56], *weights[1:]])

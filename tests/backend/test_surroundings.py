"""Compiling leaves no mark on the caller."""

from __future__ import annotations

import sys

import pytest
import torch

from support.compiled import SeenOperators
from treeplay.backend.surroundings import raise_recursion_limit, undisturbed


def test_D14_random_numbers_are_not_used_up():
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    with undisturbed():
        torch.rand(3)
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("is_failing", [False, True])
def test_D14_grad_mode_and_autocast_are_put_back(is_failing):
    before = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    try:
        with undisturbed():
            torch.set_grad_enabled(False)
            torch.set_autocast_enabled("cpu", True)
            torch.set_autocast_dtype("cpu", torch.float16)
            if is_failing:
                raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert before == (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))


def test_D14_dispatch_modes_of_the_user_see_nothing():
    with SeenOperators() as log:
        with undisturbed():
            torch.ones(2) + 1
        torch.ones(2).sum()
    assert not any("add" in name for name in log.seen) and any("sum" in name for name in log.seen)


@pytest.mark.parametrize(("limit", "after"), [(5000, 5000), (1000, 2000)])
def test_D14_the_recursion_limit_is_raised_and_never_lowered(limit, after):
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(limit)
        raise_recursion_limit()
        assert sys.getrecursionlimit() == after
    finally:
        sys.setrecursionlimit(before)

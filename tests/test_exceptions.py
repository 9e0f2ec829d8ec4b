"""Tplus6: an exception of any type at any step of any way in leaves right results, effects that happened once, and no mark."""

from __future__ import annotations

import pytest

from support.exceptions import MATRIX, ON_GPU, check

pytestmark = pytest.mark.programs

GATE = [
    ("differentiable", "second trace", "RecursionError"),
    ("differentiable", "backward", "UsersOwn"),
    ("capture", "look", "UsersOwn"),
    ("capture", "signature", "AssertionError"),
    ("torch.compile", "backward", "OutOfMemoryError"),
    ("explicit graphs", "end", "KeyboardInterrupt"),
]


@pytest.mark.parametrize(("way", "step", "kind"), GATE)
def test_an_exception_leaves_the_next_calls_right(way: str, step: str, kind: str) -> None:
    check(way, step, kind)


@pytest.mark.soak
@pytest.mark.parametrize(("way", "step", "kind"), MATRIX)
def test_Tplus6_every_exception_at_every_step_of_every_way_in(way: str, step: str, kind: str) -> None:
    check(way, step, kind)


@pytest.mark.soak
@pytest.mark.gpu
@pytest.mark.parametrize(("way", "step", "kind"), ON_GPU)
def test_Tplus6_every_exception_at_every_step_on_a_gpu(way: str, step: str, kind: str) -> None:
    check(way, step, kind, "cuda")

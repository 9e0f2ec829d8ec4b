"""Deques that a program keeps: windows of frames, queues, what is rotated."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import treeplay


class Window:
    def __init__(self, most: int | None = 3) -> None:
        self.frames = deque((torch.full((2,), float(k)) for k in range(3)), maxlen=most)

    def push(self, x: torch.Tensor) -> torch.Tensor:
        self.frames.append(x * 2)
        return torch.stack(list(self.frames)).cumsum(0)[-1] * 3 - self.frames[0]


def _same(ours: deque[Any], theirs: deque[Any]) -> bool:
    return len(ours) == len(theirs) and ours.maxlen == theirs.maxlen and all(map(torch.equal, ours, theirs))


def _assert_same_calls(step: Any, eager: Any, ours: Window, theirs: Window, calls: int = 4) -> None:
    for k in range(calls):
        x, y = torch.tensor([k, 7.0]), torch.tensor([k, 7.0])  # which the program may write to, or keep
        assert torch.equal(step(x), eager(y))
        assert torch.equal(x, y) and _same(ours.frames, theirs.frames)


def test_a_window_of_the_last_frames_is_replayed() -> None:
    ours, theirs = Window(), Window()
    step = treeplay.jit(ours.push, lower="aten")
    _assert_same_calls(step, theirs.push, ours, theirs, calls=8)
    assert step.statistics().replays >= 6


def test_what_somebody_puts_there_in_between_is_seen() -> None:
    ours, theirs = Window(), Window()
    step = treeplay.jit(ours.push, lower="aten")
    _assert_same_calls(step, theirs.push, ours, theirs)
    for window in (ours, theirs):
        window.frames.appendleft(torch.full((2,), 50.0))
    _assert_same_calls(step, theirs.push, ours, theirs)
    for window in (ours, theirs):
        window.frames = deque(reversed(window.frames), maxlen=3)
    _assert_same_calls(step, theirs.push, ours, theirs)
    assert step.statistics().recordings == 1


def test_a_deque_with_another_limit_is_another_program() -> None:
    ours, theirs = Window(), Window()
    step = treeplay.jit(ours.push, lower="aten")
    _assert_same_calls(step, theirs.push, ours, theirs)
    for window in (ours, theirs):
        window.frames = deque([*window.frames, *window.frames][:4], maxlen=4)
    _assert_same_calls(step, theirs.push, ours, theirs, calls=6)
    assert step.statistics().recordings == 2


def test_a_deque_that_grows_is_refused() -> None:
    window = Window(most=None)
    step = treeplay.jit(window.push, lower="aten", on_refusal="raise")
    with pytest.raises(treeplay.Refusal, match=r"self\.frames.* 4 items to 5 items"):
        step(torch.zeros(2))
        step(torch.zeros(2))


_OPS: dict[str, Any] = {
    "push": lambda d, x: d.append(x * 2),
    "push_left": lambda d, x: d.appendleft(x - 3),
    "rotate": lambda d, x: d.rotate(1),
    "turn_back": lambda d, x: d.rotate(-1),
    "reverse": lambda d, x: d.reverse(),
    "recycle": lambda d, x: d.append(d.popleft() * 2 - x),
    "swap": lambda d, x: d.__setitem__(0, d[1]),
    "write": lambda d, x: d[1].mul_(2).sub_(x),
    "replace": lambda d, x: d.__setitem__(2, d[0] - x),
    "extend": lambda d, x: d.extend([x, x + 1]),
}


@given(
    names=st.lists(st.sampled_from(sorted(_OPS)), min_size=1, max_size=4),
    others=st.lists(st.sampled_from(sorted(_OPS)), min_size=5, max_size=5),
)
@settings(max_examples=25, deadline=None)
def test_random_programs_over_a_deque_are_those_of_eager(names: list[str], others: list[str]) -> None:
    def program(window: Window) -> Any:
        def run(x: torch.Tensor) -> torch.Tensor:
            for name in names:
                _OPS[name](window.frames, x)
            return torch.stack(list(window.frames)).cumsum(0)[-1] * 3 - window.frames[1]

        return run

    ours, theirs = Window(), Window()
    step, eager = treeplay.jit(program(ours), lower="aten"), program(theirs)
    for k, name in enumerate(others):  # somebody else changes it as well
        _assert_same_calls(step, eager, ours, theirs, calls=2)
        for window in (ours, theirs):
            _OPS[name](window.frames, torch.tensor([k, 11.0]))
    _assert_same_calls(step, eager, ours, theirs, calls=2)

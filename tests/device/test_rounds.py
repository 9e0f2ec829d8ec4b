"""Captures until everything is known that cannot move, decided without a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from treeplay.device.cuda.capturing import rounds as module
from treeplay.device.cuda.capturing.rounds import CaptureFindings, capture_in_rounds, lodgers, rewritten_of
from treeplay.device.protocol import Work
from treeplay.relocate.table import Relocation, Row

NOTHING: Any = None
NOTHING_TOLD: Any = nullcontext


class Lane:
    """Is only passed on."""

    device = NOTHING


def test_tensors_that_share_a_storage_are_told() -> None:
    flat = torch.zeros(16)
    assert lodgers([flat[:8], torch.zeros(3), flat[8:]], [0, 1, 2]) == [0, 2]
    assert lodgers([flat[:8], torch.zeros(3), flat[8:]], [1, 2]) == [2]


class Shown:
    """Captures that each show one more result that cannot move, `restless` of them; stands for the stages around."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, restless: int) -> None:
        self.left, self.dropped, self.buffered = restless, 0, [set[int]()]
        self.outputs = [torch.zeros(1) for _ in range(100)]
        monkeypatch.setattr(module, "_capture_and_prove", self.capture)
        monkeypatch.setattr(module, "_ask_nodes", lambda made, found: None)
        monkeypatch.setattr(module, "movable_of", lambda work, tensors, buffers: [0, 1, 2])
        monkeypatch.setattr(module, "give_back_cache", lambda device: None)

    def capture(
        self, work: Any, tensors: Any, lane: Any, found: CaptureFindings, buffers: Any, seconds: Any, *, in_space: bool
    ) -> Shown:
        self.buffered.append(set(buffers))
        rows = [Row("output", at, 0, 1, (), reason="moves oddly") for at in range(100) if at not in found.cloned]
        found.table = Relocation((), tuple(rows[:1] if self.left else ()), 0)
        self.left -= bool(self.left)
        return self

    def drop(self) -> None:
        self.dropped += 1


def work_of_three(state: set[int]) -> Work:
    return Work("work", NOTHING, NOTHING, names=("a", "b", "c"), state=frozenset(state))


def test_what_cannot_move_is_copied_and_the_rest_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, restless=2)
    lane: Any = Lane()
    found = capture_in_rounds(work_of_three({0}), [torch.zeros(1)] * 3, lane).found
    assert found.cloned == {0: "moves oddly", 1: "moves oddly"} and not found.buffered and shown.dropped == 2


def test_what_never_settles_is_captured_with_copies_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, restless=7)
    lane: Any = Lane()
    found = capture_in_rounds(work_of_three({0}), [torch.zeros(1)] * 3, lane).found
    assert set(found.cloned) == set(range(100)) and set(found.buffered) == {1, 2} == shown.buffered[-1]
    assert found.cloned[0] == "moves oddly" and "went on showing" in found.cloned[99] and shown.dropped == 7


def test_gradients_that_cannot_move_are_captured_without_others_in_their_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = Shown(monkeypatch, restless=1)
    lane: Any = Lane()
    work = Work("work", NOTHING, NOTHING, names=("a",), slots={0: 0, 1: 0}, tells=NOTHING_TOLD)
    assert rewritten_of(work, CaptureFindings()) == {0, 1}
    found = capture_in_rounds(work, [torch.zeros(1)], lane).found
    assert not found.cloned and not rewritten_of(work, found) and shown.dropped == 1


def test_gradients_that_cannot_move_in_any_way_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, restless=2)
    lane: Any = Lane()
    work = Work("work", NOTHING, NOTHING, names=("a",), slots={0: 0}, tells=NOTHING_TOLD)
    found = capture_in_rounds(work, [torch.zeros(1)], lane).found
    assert set(found.cloned) == {0} and not rewritten_of(work, found) and shown.dropped == 2


@pytest.mark.parametrize(("in_space", "tells"), [(False, NOTHING_TOLD), (True, None)])
def test_where_nothing_shares_gradients_nothing_is_captured_again(
    monkeypatch: pytest.MonkeyPatch, in_space: bool, tells: Any
) -> None:
    shown = Shown(monkeypatch, restless=1)
    lane: Any = Lane()
    work = Work("work", NOTHING, NOTHING, names=("a",), slots={0: 0}, tells=tells)
    found = capture_in_rounds(work, [torch.zeros(1)], lane, in_space=in_space).found
    assert set(found.cloned) == {0} and shown.dropped == 1

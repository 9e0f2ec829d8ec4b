"""State that moves between launches, and tensors that share a storage: decided without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treeplay.device.cuda import captured as module
from treeplay.device.cuda.attempt import kept_in_place
from treeplay.device.cuda.captured import CapturedGraph, CaptureFindings, capture_work, lodgers
from treeplay.device.cuda.lane import Unplaced
from treeplay.device.protocol import Work
from treeplay.errors import CaptureFailed
from treeplay.relocate.table import Relocation, Row, Site

NOTHING: Any = None


class Patcher:
    """Notes what it is told to move."""

    def __init__(self) -> None:
        self.moved: list[tuple[int, int]] = []

    def move_many(self, moves: Any) -> None:
        self.moved += [(row.index, address) for row, address in moves]


def captured(tensors: list[torch.Tensor], rows: list[Row], *, state: set[int]) -> CapturedGraph:
    work = Work("work", NOTHING, NOTHING, names=tuple(map(str, range(len(tensors)))), state=frozenset(state))
    addresses = [tensor.data_ptr() for tensor in tensors]
    by_index = {row.index: row for row in rows}
    return CapturedGraph(work, NOTHING, NOTHING, CaptureFindings(), {}, by_index, Patcher(), addresses, NOTHING, 0, {})  # type: ignore[arg-type]


def row_of(index: int, tensor: torch.Tensor, *, leader: int | None = None, alignment: int = 4) -> Row:
    sites = () if leader is not None else (Site(index, 0, 0, 0),)
    return Row("tensor", index, tensor.data_ptr(), alignment, sites, leader=leader)


def test_only_state_that_moved_is_patched() -> None:
    a, b, argument = (torch.zeros(8) for _ in range(3))
    made = captured([a, b, argument], [row_of(0, a), row_of(1, b), row_of(2, argument)], state={0, 1})
    elsewhere = torch.zeros(8)
    made.move_state([a, elsewhere, torch.zeros(8)])
    assert made.patcher.moved == [(1, elsewhere.data_ptr())]  # type: ignore[union-attr]
    assert made.addresses[1] == elsewhere.data_ptr() and made.moves == 1


def test_state_of_another_alignment_is_not_patched() -> None:
    a = torch.zeros(1024)[:8]
    made = captured([a], [row_of(0, a, alignment=4096)], state={0})
    with pytest.raises(Unplaced):
        made.move_state([torch.zeros(2048).as_strided((8,), (1,), 1 + (a.data_ptr() // 4) % 7)])
    assert made.patcher.moved == []  # type: ignore[union-attr]


def test_state_that_cannot_be_patched_is_not() -> None:
    a = torch.zeros(8)
    made = captured([a], [], state={0})
    with pytest.raises(Unplaced):
        made.move_state([torch.zeros(8)])


def test_tensors_of_one_storage_move_together() -> None:
    flat, other = torch.zeros(16), torch.zeros(16)
    first, second = flat[:8], flat[8:]
    made = captured([first, second], [row_of(0, first), row_of(1, second, leader=0)], state={0, 1})
    made.move_state([other[:8], other[8:]])
    assert made.patcher.moved == [(0, other.data_ptr())]  # type: ignore[union-attr]


@pytest.mark.parametrize("which", ["follower stays", "leader stays", "other distance"])
def test_tensors_of_one_storage_that_part_are_captured_anew(which: str) -> None:
    flat, other = torch.zeros(16), torch.zeros(16)
    first, second = flat[:8], flat[8:]
    made = captured([first, second], [row_of(0, first), row_of(1, second, leader=0)], state={0, 1})
    now = {
        "follower stays": [other[:8], second],
        "leader stays": [first, other[8:]],
        "other distance": [other[:8], other[4:12]],
    }[which]
    with pytest.raises(Unplaced):
        made.move_state(now)
    assert made.patcher.moved == []  # type: ignore[union-attr]


def test_tensors_that_share_a_storage_are_told() -> None:
    flat = torch.zeros(16)
    assert lodgers([flat[:8], torch.zeros(3), flat[8:]], [0, 1, 2]) == [0, 2]
    assert lodgers([flat[:8], torch.zeros(3), flat[8:]], [1, 2]) == [2]


def test_a_body_that_gives_a_tensor_other_memory_is_refused_and_undone() -> None:
    weight = torch.arange(4.0)
    address = weight.data_ptr()
    with pytest.raises(CaptureFailed, match="flatten_parameters"), kept_in_place([torch.ones(2), weight]):
        weight.data = torch.zeros(4)
    assert weight.data_ptr() == address and weight.tolist() == [0, 1, 2, 3]


def test_an_exception_of_the_body_stays_the_first() -> None:
    weight = torch.arange(4.0)
    with pytest.raises(KeyError), kept_in_place([weight]):
        weight.data = torch.zeros(4)
        raise KeyError("mine")
    assert weight.tolist() == [0, 1, 2, 3]


class Shown:
    """Captures that each show one more result that cannot move, `restless` of them; stands for the stages around."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, restless: int) -> None:
        self.left, self.dropped, self.buffered = restless, 0, [set[int]()]
        self.outputs = [torch.zeros(1) for _ in range(100)]
        monkeypatch.setattr(module, "_capture_and_prove", self.capture)
        monkeypatch.setattr(module, "_ask_nodes", lambda made, found: None)
        monkeypatch.setattr(module, "movable_of", lambda work, tensors, buffers: [0, 1, 2])
        monkeypatch.setattr(module, "_instantiated", lambda *args: args[3])

    def capture(self, work: Any, tensors: Any, lane: Any, found: CaptureFindings, buffers: Any, seconds: Any) -> Shown:
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
    found: Any = capture_work(work_of_three({0}), [torch.zeros(1)] * 3, NOTHING, NOTHING, NOTHING)
    assert found.cloned == {0: "moves oddly", 1: "moves oddly"} and not found.buffered and shown.dropped == 2


def test_what_never_settles_is_captured_with_copies_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Shown(monkeypatch, restless=7)
    found: Any = capture_work(work_of_three({0}), [torch.zeros(1)] * 3, NOTHING, NOTHING, NOTHING)
    assert set(found.cloned) == set(range(100)) and set(found.buffered) == {1, 2} == shown.buffered[-1]
    assert found.cloned[0] == "moves oddly" and "went on showing" in found.cloned[99] and shown.dropped == 7

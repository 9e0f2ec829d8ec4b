"""State that moves between launches, decided without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from treeplay.device.cuda.captured import CapturedGraph
from treeplay.device.cuda.capturing.attempt import kept_in_place
from treeplay.device.cuda.capturing.rounds import CaptureFindings
from treeplay.device.cuda.lane import Unplaced
from treeplay.device.protocol import Work
from treeplay.errors import CaptureFailed
from treeplay.relocate.table import Row, Site

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

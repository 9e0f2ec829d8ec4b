"""A result is known from its birth on only where its operator had nothing else at its place."""

from __future__ import annotations

import pytest
import torch

from treeplay.device.cuda.capturing.history import notes_of
from treeplay.device.cuda.capturing.marks import undisputed
from treeplay.torch_seam import allocator
from treeplay.values.nodes import Allocation

A, B = Allocation(0x1000, 600), Allocation(0x1000, 100)  # the second lies where the first lay
ELSEWHERE = Allocation(0x4000, 100)


def known(blocks: list[Allocation], notes: str, *, told: str = "2") -> bool:
    return undisputed({0: (7, told)}, {0: 0x1000}, blocks, tuple(notes)) == {0: 7}


def test_what_another_operator_had_there_before_is_told_by_the_birth():
    assert known([A, B], "12")
    assert known([A, ELSEWHERE, B], "122")


def test_scratch_of_the_same_operator_at_the_same_place_is_not():
    assert not known([A, B], "22")
    assert not known([ELSEWHERE, A, ELSEWHERE, B], "1222")
    assert not known([Allocation(0x0F00, 0x200), B], "22")


def test_scratch_elsewhere_does_not_matter():
    assert known([ELSEWHERE, B], "22")
    assert known([Allocation(0x0E00, 512), B, Allocation(0x1200, 512)], "222")


def test_a_result_that_was_not_allocated_is_not_known():
    assert undisputed({0: (7, "1")}, {0: 0x9000}, [A], ("1",)) == {}


def test_a_result_that_nobody_told_of_has_not_the_birth_of_what_lay_there_before():
    assert known([A, B], "12", told="2") and not known([A, B], "12", told="1")


def test_notes_are_those_of_allocations():
    entries = [{"action": "alloc", "user_metadata": "3"}, {"action": "free_completed"}, {"action": "alloc"}]
    assert notes_of(entries) == ("3", "")


@pytest.mark.gpu
def test_the_allocator_notes_what_it_is_told():
    before = allocator.noted_allocations()
    allocator.start_history(100)
    try:
        allocator.note_allocations("11")
        kept = torch.empty(1000, device="cuda")
        allocator.note_allocations("12")
        more = torch.empty(1000, device="cuda")
        entries = allocator.allocator_state().histories[torch.cuda.current_device()]
    finally:
        allocator.note_allocations(before)
        allocator.stop_history()
    notes = {entry["addr"]: entry["user_metadata"] for entry in entries if entry["action"] == "alloc"}
    assert (notes[kept.data_ptr()], notes[more.data_ptr()]) == ("11", "12")

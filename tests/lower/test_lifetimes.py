"""Buffers that are freed before a result is made lie in its memory, and no two that are alive at once overlap."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from treeplay.lower.lifetimes import LifetimeNotes, NotedBuffer, places_in_results

KIB = 1 << 10
FLOATS = 64 * KIB // 4


def kind_of(nbytes: int) -> tuple[Any, ...]:
    return (nbytes // 4,), (1,), torch.float32


def buffer(kib: int, freed: int | None = None, result: int | None = None) -> NotedBuffer:
    nbytes = kib * KIB
    return NotedBuffer(kind_of(nbytes), nbytes, freed, result is not None, result)


def placed(buffers: list[NotedBuffer], results: set[int]) -> dict[int, tuple[int, int]]:
    return {at: (place.outer, place.offset) for at, place in places_in_results(buffers, results).items()}


def test_a_buffer_freed_before_a_result_is_made_lies_in_it() -> None:
    assert placed([buffer(64, freed=2), buffer(64, freed=3), buffer(128, result=0)], {0}) == {0: (2, 0)}


def test_buffers_that_are_alive_at_once_lie_beside_each_other() -> None:
    buffers = [buffer(64, freed=2), buffer(64, freed=2), buffer(128, result=0)]
    assert sorted(placed(buffers, {0}).values()) == [(2, 0), (2, 64 * KIB)]


def test_one_after_the_other_has_the_same_place() -> None:
    buffers = [buffer(128, freed=1), buffer(128, freed=2), buffer(128, result=0)]
    assert placed(buffers, {0}) == {0: (2, 0), 1: (2, 0)}


def test_the_smallest_result_with_room_is_taken() -> None:
    buffers = [buffer(64, freed=1), buffer(256, result=0), buffer(96, result=1), buffer(32, result=2)]
    assert placed(buffers, {0, 1, 2}) == {0: (2, 0)}


def test_in_results_that_are_not_named_nothing_lies() -> None:
    buffers = [buffer(64, freed=1), buffer(64, result=3), buffer(64, result=4)]
    assert placed(buffers, {4}) == {0: (2, 0)}
    assert placed(buffers, set()) == {}


def test_results_and_what_is_never_freed_lie_in_nothing() -> None:
    returned_twice = NotedBuffer(kind_of(64 * KIB), 64 * KIB, None, is_returned=True)
    assert placed([buffer(64), returned_twice, buffer(64, result=0), buffer(64, result=1)], {0, 1}) == {}


@st.composite
def steps(draw: st.DrawFn) -> list[NotedBuffer]:
    count = draw(st.integers(1, 24))
    made = []
    for at in range(count):
        kib = draw(st.sampled_from([64, 65, 96, 128, 200, 513]))
        if draw(st.booleans()):
            made.append(buffer(kib, result=at))
        else:
            made.append(buffer(kib, freed=draw(st.none() | st.integers(at + 1, count))))
    return made


@given(steps())
def test_no_two_that_are_alive_at_once_overlap(buffers: list[NotedBuffer]) -> None:
    found = places_in_results(buffers, range(len(buffers)))
    for at, place in found.items():
        one, outer = buffers[at], buffers[place.outer]
        assert one.freed is not None and at < one.freed <= place.outer and outer.result is not None
        assert place.offset % 512 == 0 and place.offset + one.nbytes <= outer.nbytes
        for other_at, other in found.items():
            two = buffers[other_at]
            if other_at == at or other.outer != place.outer or two.freed is None:
                continue
            apart = one.freed <= other_at or two.freed <= at
            assert apart or place.offset + one.nbytes <= other.offset or other.offset + two.nbytes <= place.offset


def test_a_run_tells_when_its_buffers_are_freed_and_what_they_are_returned_as() -> None:
    notes = LifetimeNotes()

    def make(count: int) -> torch.Tensor:
        return notes.allocate(lambda *wanted: torch.empty_strided(*wanted[:2], dtype=wanted[2]), *kind_of(count * 4))

    first = make(FLOATS)
    view = first[1:]
    del first
    small, whole = make(8), make(FLOATS + 3)
    del small
    second = make(FLOATS)
    del view
    part, twice = make(FLOATS), make(FLOATS)
    del second
    made = notes.of_run([whole, 3, part[1:], twice, twice.view(2, -1), None])
    assert [one.freed for one in made] == [4, None, None, None, None, None]  # the last to go is not seen any more
    assert [one.is_returned for one in made] == [False, False, True, False, True, True]
    assert [one.result for one in made] == [None, None, 0, None, None, None]
    assert [one.kind for one in made[:3]] == [kind_of(FLOATS * 4), kind_of(32), kind_of((FLOATS + 3) * 4)]

"""What recordings of one device hold together, and which of them goes when it is too much."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import treeplay
from treeplay.device.cuda import lane as lane_module
from treeplay.device.cuda.lane import Lane, union_bytes
from treeplay.device.use import Use
from treeplay.values.nodes import Allocation


class Held:
    """A recording as the lane sees it."""

    def __init__(self, launches: int, own_bytes: int, blocks: Sequence[Allocation] = ()) -> None:
        self.launches = launches
        self.use = Use()
        self.own_bytes = self.usual_bytes = own_bytes
        self.blocks = blocks
        self.is_held = True

    @property
    def scratch_bytes(self) -> int:
        return union_bytes(self.blocks)

    def free(self) -> None:
        self.is_held = False


@pytest.fixture
def lane() -> Lane:
    return Lane(torch.device("cuda", 0))


def test_memory_that_several_use_counts_once() -> None:
    assert union_bytes([]) == 0
    assert union_bytes([Allocation(0, 1024), Allocation(512, 1024), Allocation(4096, 1)]) == 1536 + 512
    assert union_bytes([Allocation(512, 512), Allocation(0, 4096)]) == 4096


def test_what_is_held_is_scratch_and_what_each_has_of_its_own(lane: Lane) -> None:
    first, second = Held(0, 10, [Allocation(0, 1024)]), Held(0, 20, [Allocation(0, 2048)])
    lane.hold(first)
    lane.hold(second)
    assert lane.held_bytes() == 2048 + 30


def test_the_least_launched_goes_first_and_the_newest_stays(lane: Lane) -> None:
    often, seldom = Held(100, 40), Held(3, 40)
    with treeplay.settings.changed(memory_budget_bytes=100):
        lane.hold(often)
        lane.hold(seldom)
        often.launches, seldom.launches = 100, 3
        newest = Held(0, 50)
        lane.hold(newest)
    assert (often.is_held, seldom.is_held, newest.is_held) == (True, False, True)
    assert lane.held_bytes() == 90


def test_what_is_worth_least_for_its_bytes_goes_first(lane: Lane) -> None:
    small, large = Held(0, 10), Held(0, 80)
    with treeplay.settings.changed(memory_budget_bytes=100):
        lane.hold(small)
        lane.hold(large)
        small.launches, large.launches = 10, 40
        lane.hold(Held(0, 50))
    assert small.is_held and not large.is_held


def test_old_launches_count_less(lane: Lane) -> None:
    once, now = Held(0, 40), Held(0, 40)
    with treeplay.settings.changed(memory_budget_bytes=100):
        lane.hold(once)
        lane.hold(now)
        once.launches = 1000
        lane.held_bytes()
        lane.hold(Held(0, 1))
        now.launches = 3000
        lane.hold(Held(0, 50))
    assert now.is_held and not once.is_held


def test_what_was_let_go_is_admitted_once_it_is_worth_more_than_what_would_go(lane: Lane) -> None:
    seldom, often = Held(0, 40), Held(0, 40)
    gone = Use(nbytes=50)
    with treeplay.settings.changed(memory_budget_bytes=100):
        lane.hold(seldom)
        lane.hold(often)
        seldom.launches, often.launches = 4, 100
        assert not lane.admits(gone, 4)
        assert lane.admits(gone, 4)  # it may take the place of the one, and leave the other's
        lane.hold(newest := Held(0, 50))
        assert (seldom.is_held, often.is_held, newest.is_held) == (False, True, True)
        assert not lane.admits(Use(nbytes=90), 20)


def test_scratch_that_is_shared_counts_once_for_what_is_admitted(lane: Lane) -> None:
    held = Held(0, 10, [Allocation(0, 1000)])
    with treeplay.settings.changed(memory_budget_bytes=1100):
        lane.hold(held)
        held.launches = 100
        assert lane.admits(Use(nbytes=910, shared=900), 1) and not lane.admits(Use(nbytes=910), 1)


def test_launches_are_counted_anew_each_time(lane: Lane) -> None:
    held = Held(9, 1)
    lane.hold(held)
    assert held.launches == 0


def test_a_recording_larger_than_all_that_may_be_held_stays_alone(lane: Lane) -> None:
    other, large = Held(5, 1), Held(0, 1000)
    with treeplay.settings.changed(memory_budget_bytes=10):
        lane.hold(other)
        lane.hold(large)
    assert (other.is_held, large.is_held) == (False, True)


def test_making_room_lets_all_go_once(lane: Lane) -> None:
    held = [Held(1, 1), Held(2, 2)]
    for one in held:
        lane.hold(one)
    assert lane.make_room() and not any(one.is_held for one in held)
    assert not lane.make_room() and lane.held_bytes() == 0


def test_a_recording_that_has_died_is_forgotten(lane: Lane) -> None:
    lane.hold(Held(1, 7))
    assert lane.held_bytes() == 0


class Addresses:
    """An owner of addresses whose first `close` raises, if it is to."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        self.name, self.closed, self.fails = name, closed, fails

    def close(self) -> bool:
        if self.fails:
            self.fails = False
            raise RuntimeError("an error of the device")
        self.closed.append(self.name)
        return True


def test_addresses_that_an_error_kept_from_being_closed_are_closed_later(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    event = SimpleNamespace(query=lambda: False, synchronize=lambda: None)
    monkeypatch.setattr(lane_module.driver, "relaxed", nullcontext)
    monkeypatch.setattr(torch.cuda, "Event", lambda: event)
    for space in (Addresses("first", closed), Addresses("second", closed, fails=True), Addresses("third", closed)):
        lane.close(space)
    event.query = lambda: True
    with pytest.raises(RuntimeError, match="of the device"):
        lane.address_space()
    monkeypatch.setattr(lane_module, "can_be_made", lambda index: False)
    lane.address_space()
    lane.address_space()
    assert sorted(closed) == ["first", "second", "third"]

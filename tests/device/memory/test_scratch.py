"""Memory that recordings share: as much as the largest of them takes, decided without a GPU."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treeplay.device.cuda.memory import mapping, scratch
from treeplay.device.cuda.memory.scratch import Scratch

PAGE = 2 << 20


class Driver:
    """Makes memory, up to `most` bytes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int = 1 << 40) -> None:
        self.alive: dict[int, int] = {}
        self.made = self.emptied = 0
        self.most = most
        monkeypatch.setattr(mapping, "granularity", lambda index: PAGE)
        monkeypatch.setattr(mapping, "make_memory", self.make)
        monkeypatch.setattr(mapping, "release_memory", self.alive.pop)
        monkeypatch.setattr(scratch, "emptied", self.empty)
        self.fraction = 1.0
        monkeypatch.setattr(scratch.torch.cuda, "get_per_process_memory_fraction", lambda index: self.fraction)
        monkeypatch.setattr(scratch.torch.cuda, "memory_reserved", lambda index: 10 * PAGE)
        gpu = SimpleNamespace(total_memory=200 * PAGE)
        monkeypatch.setattr(scratch.torch.cuda, "get_device_properties", lambda index: gpu)

    def make(self, index: int, nbytes: int) -> int:
        if sum(self.alive.values()) + nbytes > self.most:
            raise torch.OutOfMemoryError
        self.made += 1
        self.alive[self.made] = nbytes
        return self.made

    def empty(self) -> None:
        self.emptied += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


UNITS = st.lists(st.lists(st.integers(1, 90), min_size=1, max_size=5), min_size=1, max_size=6)


def test_T35_programs_take_the_memory_of_the_largest(driver: Driver) -> None:
    shared = Scratch(0)
    shares = [shared.share(units) for units in ([70, 3], [70], [2, 70, 3], [35, 35])]
    assert [share.nbytes for share in shares] == [73 * PAGE, 70 * PAGE, 75 * PAGE, 70 * PAGE]
    assert sum(driver.alive.values()) == shared.nbytes <= 1.1 * 75 * PAGE
    for share in shares:
        shared.give_back(share)
    assert not driver.alive and shared.nbytes == 0


@given(programs=UNITS, order=st.randoms(use_true_random=False))
def test_no_two_units_of_a_recording_have_a_piece_in_common_and_each_is_whole(
    programs: list[list[int]], order: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        driver = Driver(monkeypatch)
        shared = Scratch(0)
        shares = []
        for units in programs:
            share = shared.share(units)
            shares.append((share, units))
            used = set()
            for number, pages in enumerate(units):
                at = number << 40
                for address, nbytes, memory in share.pieces(number, number << 40):
                    assert address == at and driver.alive[memory] == nbytes and memory not in used
                    used.add(memory)
                    at += nbytes
                assert at == (number << 40) + pages * PAGE
        assert sum(driver.alive.values()) == shared.nbytes >= max(map(sum, programs)) * PAGE
        order.shuffle(shares)
        while shares:
            shared.give_back(shares.pop()[0])
            assert sum(driver.alive.values()) == shared.nbytes
            assert shared.nbytes >= max((sum(units) for _, units in shares), default=0) * PAGE
        assert not driver.alive


def test_memory_that_cannot_be_had_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch, most=80 * PAGE)
    shared = Scratch(0)
    first = shared.share([64])
    with pytest.raises(torch.OutOfMemoryError):
        shared.share([64, 64])
    assert shared.nbytes == 64 * PAGE == sum(driver.alive.values()) and driver.emptied
    shared.give_back(first)
    assert not driver.alive


def test_T7_a_limit_of_the_process_holds_for_scratch_too(driver: Driver) -> None:
    shared = Scratch(0)
    driver.fraction = 0.25  # 50 pages, 10 of which torch has
    share = shared.share([40])
    with pytest.raises(torch.OutOfMemoryError, match="may use of the GPU"):
        shared.share([40, 1])
    assert shared.nbytes == 40 * PAGE == sum(driver.alive.values())
    driver.fraction = 1.0
    shared.share([40, 1])
    shared.give_back(share)
    assert shared.nbytes == 41 * PAGE


def test_the_filler_goes_with_its_last_user(driver: Driver) -> None:
    shared = Scratch(0)
    assert shared.filler() == shared.filler() and len(driver.alive) == 2
    shared.give_back_filler()
    assert driver.alive
    shared.give_back_filler()
    assert not driver.alive

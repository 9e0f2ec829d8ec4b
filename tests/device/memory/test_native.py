"""The native allocator of addresses, with functions of Python's in the place of the driver's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from ctypes import CFUNCTYPE, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p, cast
from typing import Any

import pytest

from treeplay.codegen import library
from treeplay.device.cuda.memory import native

pytestmark = pytest.mark.compile

MIB = 1 << 20
NO_GAPS = 453  # four times in a row
_Map = CFUNCTYPE(c_int, c_uint64, c_size_t, c_size_t, c_uint64, c_ulonglong)
_Allow = CFUNCTYPE(c_int, c_uint64, c_size_t, c_void_p, c_size_t)
_Mode = CFUNCTYPE(c_int, c_void_p)


class Driver:
    """Notes what it is asked for, and fails from the call number `fails_at` to map on."""

    def __init__(self, fails_at: int = 1000) -> None:
        self.mapped: list[tuple[int, int, int]] = []
        self.allowed: list[tuple[int, int]] = []
        self.modes = 0

        def map_memory(address: int, size: int, offset: int, memory: int, flags: int) -> int:
            if len(self.mapped) >= fails_at:
                return 1
            self.mapped.append((address, size, memory))
            return 0

        def allow(address: int, size: int, access: Any, count: int) -> int:
            self.allowed.append((address, size))
            return 0

        def exchange(mode: Any) -> int:
            self.modes += 1
            return 0

        self.functions = (_Map(map_memory), _Allow(allow), _Mode(exchange))

    def use(self, start: int, end: int, seed: int = NO_GAPS) -> Callable[[int], int | None]:
        library = native.functions()
        assert library is not None
        map_memory, allow, exchange = (cast(one, c_void_p) for one in self.functions)
        library.use_range(start, end, 16 * MIB, 77, 2 * MIB, 78, map_memory, allow, None, exchange, seed)
        return lambda size: library.take(size, 0, None)

    def next(self) -> int:
        library = native.functions()
        assert library is not None
        return int(library.range_next())


def test_addresses_follow_one_another_and_pieces_are_mapped_behind_them() -> None:
    driver = Driver()
    take = driver.use(100 * MIB, 200 * MIB)
    assert take(2 * MIB) == 100 * MIB
    assert take(40 * MIB) == 102 * MIB
    assert driver.mapped == [
        (100 * MIB, 2 * MIB, 78),
        *((at * MIB, 16 * MIB, 77) for at in (102, 118)),
        *((at * MIB, 2 * MIB, 78) for at in (134, 136, 138, 140)),
    ]
    assert driver.allowed == [(100 * MIB, 2 * MIB), (102 * MIB, 40 * MIB)]
    assert driver.next() == 142 * MIB and driver.modes == 4


def test_segments_lie_at_other_distances_in_each_range() -> None:
    distances = set()
    for seed in (1, 2):
        driver = Driver()
        take = driver.use(100 * MIB, 900 * MIB, seed)
        found = [take(20 * MIB) or 0 for _ in range(6)]
        assert all(b - a >= 20 * MIB for a, b in itertools.pairwise(found))
        assert sum(size for _, size, _ in driver.mapped) == driver.next() - 100 * MIB  # no hole is left
        distances.add(tuple(b - a for a, b in itertools.pairwise(found)))
    assert len(distances) == 2


def test_there_is_an_end_to_them() -> None:
    driver = Driver()
    take = driver.use(100 * MIB, 110 * MIB)
    assert take(12 * MIB) is None and driver.next() == 100 * MIB and not driver.mapped
    assert take(10 * MIB) == 100 * MIB
    assert take(2 * MIB) is None


def test_what_cannot_be_mapped_is_not_given() -> None:
    driver = Driver()
    take = driver.use(100 * MIB, 200 * MIB)
    assert take(3 * MIB) is None and not driver.mapped


def test_what_was_mapped_before_a_failure_is_known() -> None:
    driver = Driver(fails_at=2)
    take = driver.use(100 * MIB, 200 * MIB)
    assert take(40 * MIB) is None
    assert driver.next() == 132 * MIB and driver.modes == 2 and not driver.allowed


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_c_compiler", lambda: None)
    assert native.functions.__wrapped__() is None


def test_a_compiler_that_fails_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_c_compiler", lambda: "/bin/false")
    assert native.functions.__wrapped__() is None

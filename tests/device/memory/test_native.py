"""The native allocator of addresses, with functions of Python's in the place of the driver's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from ctypes import CFUNCTYPE, POINTER, PyDLL, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p, cast
from pathlib import Path
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
_Create = CFUNCTYPE(c_int, POINTER(c_uint64), c_size_t, c_void_p, c_ulonglong)
_Release = CFUNCTYPE(c_int, c_uint64)


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


class MemoryDriver(Driver):
    """One that makes memory too, and fails from the call number `makes` on, or in each call to `allow`."""

    def __init__(self, makes: int = 1000, allows: bool = True) -> None:
        super().__init__()
        self.made: list[int] = []
        self.released: list[int] = []

        def create(memory: Any, size: int, properties: Any, flags: int) -> int:
            if len(self.made) >= makes:
                return 2
            self.made.append(size)
            memory[0] = 500 + len(self.made)
            return 0

        def release(memory: int) -> int:
            self.released.append(memory)
            return 0

        self.memory_functions = (_Create(create), _Release(release), _Allow(lambda *_: int(not allows)))

    def lend(self, start: int, mapped: int, end: int) -> Callable[[int], int | None]:
        library = native.functions()
        assert library is not None
        create, release, allow = (cast(one, c_void_p) for one in self.memory_functions)
        library.use_memory(start, mapped, end, create, None, cast(self.functions[0], c_void_p), allow, None, release)
        return lambda size: library.take_memory(size, 0, None)


def memory_end() -> int:
    library = native.functions()
    assert library is not None
    return int(library.memory_end())


def test_memory_that_is_lent_comes_first_and_then_as_much_as_is_missing() -> None:
    driver = MemoryDriver()
    take = driver.lend(100 * MIB, 140 * MIB, 200 * MIB)
    assert take(20 * MIB) == 100 * MIB and not driver.made
    assert take(32 * MIB) == 120 * MIB and driver.made == [12 * MIB]
    assert driver.mapped == [(140 * MIB, 12 * MIB, 501)] and driver.released == [501]
    assert take(2 * MIB) == 152 * MIB and driver.mapped[1:] == [(152 * MIB, 2 * MIB, 502)]
    assert memory_end() == 154 * MIB
    assert take(48 * MIB) is None and take(46 * MIB) == 154 * MIB and take(2 * MIB) is None


def test_where_no_more_memory_can_be_made_the_rest_of_what_is_lent_is_still_given() -> None:
    driver = MemoryDriver(makes=0)
    take = driver.lend(100 * MIB, 140 * MIB, 200 * MIB)
    assert take(42 * MIB) is None and take(40 * MIB) == 100 * MIB and memory_end() == 140 * MIB


def test_memory_that_nobody_may_use_is_known_and_not_given() -> None:
    driver = MemoryDriver(allows=False)
    take = driver.lend(100 * MIB, 102 * MIB, 200 * MIB)
    assert take(4 * MIB) is None and memory_end() == 104 * MIB
    assert take(2 * MIB) is None and take(4 * MIB) is None


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_c_compiler", lambda: None)
    assert native.functions.__wrapped__() is None


def test_a_compiler_that_fails_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_c_compiler", lambda: "/bin/false")
    assert native.functions.__wrapped__() is None


PEEKS = r"""
#include <string.h>
enum { SIZE = 8192 };
__attribute__((noinline)) void soil(void)
{
    char here[SIZE];
    memset(here, 7, SIZE);
    __asm__ volatile("" : : "r"(here) : "memory");
}
__attribute__((noinline)) int soiled(void)
{
    unsigned long long here[SIZE / 8];
    volatile unsigned long long *seen = here;
    int count = 0;
    __asm__ volatile("" : "=m"(here));
    /* By words: a single byte that is 7 may be what the interpreter has written since. */
    for (int at = 0; at < SIZE / 8; at++)
        count += seen[at] == 0x0707070707070707ull ? 8 : 0;
    return count;
}
"""


def test_the_stack_is_cleared(tmp_path: Path) -> None:
    source = tmp_path / "peeks.c"
    source.write_text(PEEKS)
    peeks = library.compile_library(source, PyDLL)
    clear = native.clear_stack()
    peeks.soil()
    assert peeks.soiled() > 4096
    peeks.soil()
    clear()
    assert peeks.soiled() == 0


def test_without_a_compiler_nothing_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "functions", lambda: None)
    native.clear_stack.cache_clear()
    try:
        assert native.clear_stack()() is None
    finally:
        native.clear_stack.cache_clear()

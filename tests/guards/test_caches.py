"""Caches of functions: their entries, and the guard over those with a limit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from treeplay.guards.caches import CachedResults, cache_guard, entries_in
from treeplay.torch_seam.patched import ABSENT


def _pair(*args: Any, **kwargs: Any) -> list[Any]:
    return [args, kwargs]


class _Callable:
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return {"args": args}


@pytest.mark.parametrize(
    "function", [_pair, _Callable(), lambda *args: int], ids=["function", "object", "gives classes"]
)
@pytest.mark.parametrize("maxsize", [2, 8, None])
def test_entries_are_told_by_key(maxsize: int | None, function: Callable[..., Any]) -> None:
    cached = functools.lru_cache(maxsize)(function)
    assert entries_in(cached) == []
    for k in (1, 300, "two"):
        cached(k)
    cached(300)  # the latest from here on
    assert dict(entries_in(cached)) == {
        key: function(key) for key in ((300, "two") if maxsize == 2 else (1, 300, "two"))
    }


def test_a_result_in_the_place_of_another_is_another_one() -> None:
    cached = functools.lru_cache(1)(_pair)
    before = cached(3, 4)
    guard = cache_guard(cached, "cached")
    assert isinstance(guard, CachedResults)
    ((key, value),) = guard.recorded.items()
    assert key == (3, 4) and value is before
    cached(7)
    assert [*guard.content(guard.holder).values()] == [ABSENT]
    after = cached(3, 4)
    (found,) = guard.content(guard.holder).values()
    assert found is after is not before


def test_other_entries_may_come_and_go() -> None:
    cached = functools.lru_cache(2)(_pair)
    cached(3)
    guard = cache_guard(cached, "cached")
    assert guard is not None
    before = guard.recorded[3]
    for k in range(4):
        cached(10 + k)
        cached(3)
    assert [*guard.content(guard.holder).values()] == [before] and guard.recorded[3] is before

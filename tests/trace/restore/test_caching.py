"""What `functools.lru_cache` keeps of a trace is not there afterwards."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same


def rotations(size: int) -> dict[str, Any]:
    return {"cos": torch.arange(float(size)).cos(), "others": (torch.arange(float(size)).sin(), [torch.ones(size)])}


def turned(rotations: Callable[[int], dict[str, Any]], x: torch.Tensor) -> torch.Tensor:
    found = rotations(len(x))
    return x * found["cos"] - found["others"][0] * found["others"][1][0]


@pytest.mark.parametrize("is_read", [False, True], ids=["kept", "kept by a trace that does not come to its end"])
@pytest.mark.parametrize("maxsize", [1, 8, None])
def test_a_function_that_caches_its_results_keeps_none_of_a_trace(maxsize: int | None, is_read: bool) -> None:
    """It gave tensors without data to the program from then on, which raised."""
    cached = functools.lru_cache(maxsize)(rotations)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = turned(cached, x)
        return y * y.sum().item() if is_read else y

    jitted = treeplay.jit(program, lower="aten")
    with pytest.warns(UserWarning, match="eagerly") if is_read else contextlib.nullcontext():
        for k in range(4):
            for size in (2, 3):
                if k == 1:
                    cached.cache_clear()
                x = torch.rand(size)
                y = turned(rotations, x)
                assert_same(jitted(x), y * y.sum() if is_read else y)
    # One with a limit has forgotten the other's tensors too.
    assert jitted.statistics().recordings == (2 if maxsize is None and not is_read else 0)


def test_what_was_cached_before_the_trace_stays_where_entries_can_be_taken_out() -> None:
    cached = functools.cache(rotations)

    def program(x: torch.Tensor, size: int) -> torch.Tensor:
        return x * cached(size)["cos"]

    jitted = treeplay.jit(program, lower="aten")
    jitted(torch.ones(3), 3)
    cached.cache_clear()  # so that the trace fills it
    kept = cached(7)
    assert_same(jitted(torch.ones(3), 3), program(torch.ones(3), 3))
    assert jitted.statistics().recordings == 0
    assert cached(7) is kept
    assert cached.cache_info().currsize == 2

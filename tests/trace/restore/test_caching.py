"""What `functools.lru_cache` keeps of a trace is not there afterwards."""

from __future__ import annotations

import contextlib
import functools
import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same
from treeplay.trace.restore import caching


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


class Counts:
    n = 0


def _traced_again(x: torch.Tensor, counts: Counts, kept: torch.Tensor) -> torch.Tensor:
    counts.n += 1
    kept.add_(x, alpha=0.1 * counts.n if counts.n % 3 else 2.0)
    return kept * 2 - x


def _given_up(x: torch.Tensor, counts: Counts, kept: torch.Tensor) -> torch.Tensor:
    y = x * 2 - kept
    return y * y.sum().item()


def _raising(x: torch.Tensor, counts: Counts, kept: torch.Tensor) -> torch.Tensor:
    y = x * 2 - kept
    return y[torch.arange(2)] if counts.n else torch.stack([y, y[1:]])


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("program", [_traced_again, _given_up, _raising])
def test_no_function_is_asked_where_nothing_is_kept(
    program: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    noting = types.SimpleNamespace(
        get_objects=lambda: asked.append("objects") or gc.get_objects(),
        get_referrers=lambda *of: asked.append("referrers") or gc.get_referrers(*of),
        get_referents=gc.get_referents,
    )
    monkeypatch.setattr(caching, "gc", noting)
    counts, kept = Counts(), torch.ones(4)
    jitted = treeplay.jit(lambda x: program(x, counts, kept), lower="aten")
    for _ in range(6):
        with contextlib.suppress(RuntimeError):
            jitted(torch.ones(4))
    assert not asked


def test_frames_of_an_error_that_the_caller_handles_stay() -> None:
    counts, kept = Counts(), torch.ones(4)
    jitted = treeplay.jit(lambda x: _given_up(x, counts, kept), lower="aten")

    def raising(mine: str) -> None:
        raise ValueError

    try:
        raising("mine")
    except ValueError as error:
        with pytest.warns(UserWarning, match="eagerly"):
            for _ in range(3):
                jitted(torch.ones(4))
        assert error.__traceback__ is not None and error.__traceback__.tb_next is not None
        assert error.__traceback__.tb_next.tb_frame.f_locals == {"mine": "mine"}


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


def test_a_generator_that_keeps_an_error_which_the_program_raises_goes_on() -> None:
    state: dict[str, Any] = {"bad": None}

    def feed():
        try:
            raise ValueError("kept")
        except ValueError as error:
            state["bad"] = error
        yield 1
        yield 2

    feeding = feed()
    next(feeding)

    @treeplay.jit(lower="aten")
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2 - 1
        raise state["bad"]
        return y

    for _ in range(3):
        with pytest.raises(ValueError, match="kept"):
            step(torch.ones(3))
    assert next(feeding) == 2

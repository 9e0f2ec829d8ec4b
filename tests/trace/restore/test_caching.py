"""What `functools.lru_cache` keeps of a trace is not there afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
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
    # One that keeps a single result lacks the other in each call.
    with pytest.warns(UserWarning, match="eagerly") if is_read and maxsize != 1 else contextlib.nullcontext():
        for k in range(4):
            for size in (2, 3):
                if k == 1:
                    cached.cache_clear()
                x = torch.rand(size)
                y = turned(rotations, x)
                assert_same(jitted(x), y * y.sum() if is_read else y)
    assert jitted.statistics().recordings == (2 if maxsize != 1 and not is_read else 0)


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


@dataclasses.dataclass
class _Scale:
    values: dict[str, Any]


NUMBERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a number": (lambda number: number, lambda found: found),
    "a tuple": (lambda number: (1, [number]), lambda found: found[1][0]),
    "an object": (lambda number: _Scale({"rate": number}), lambda found: found.values["rate"]),
}


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("ending", ["too early", "refused", "raised", "recorded"])
@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("maxsize", [1, None])
def test_a_function_that_caches_numbers_keeps_none_of_a_trace(maxsize: int | None, kind: str, ending: str) -> None:
    """It gave numbers that stand for others, `nan` behind their trace, to treeplay's calls and to eager ones from then on."""
    put, take = NUMBERS[kind]
    scales, kept = [1.0], list[torch.Tensor]()
    number = functools.lru_cache(maxsize)(lambda n: put(n * scales[0]))
    same = functools.lru_cache(maxsize)(lambda: put(scales[0]))
    ones = functools.lru_cache(1)(lambda n: torch.ones(3) * n)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x - take(number(4)) * take(same())
        if ending == "too early":
            y = y + ones(3) - ones(4) + 1
        elif ending == "refused":
            kept.append(y)
        elif ending == "raised" and scales[0] == 3.0:
            raise ValueError
        return y

    jitted = treeplay.jit(program, lower="aten", on_refusal="eager")
    for k in range(12):
        if k % 2 == 0:
            scales[0] = float(k // 2)
            number.cache_clear()
            same.cache_clear()
        with contextlib.suppress(ValueError):
            assert_same(jitted(torch.ones(3)), 1 - torch.full((3,), 4.0) * scales[0] ** 2)
        for cached in (number(4), same()):
            assert type(take(cached)) is float
        assert take(number(4)) == 4 * scales[0] and take(same()) == scales[0]


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_a_number_that_a_trace_was_given_is_no_key_of_a_cache() -> None:
    scales = [1.0]
    doubled = functools.lru_cache(2)(lambda scale: scale * 2)
    ones = functools.lru_cache(1)(lambda n: torch.ones(3) * n)
    jitted = treeplay.jit(lambda x: x - doubled(scales[0]) + ones(3) - ones(4), lower="aten", on_refusal="eager")
    for k in range(12):
        scales[0] = float(k // 2)
        assert_same(jitted(torch.ones(3)), torch.ones(3) - scales[0] * 2 - 1)
        assert type(doubled(scales[0])) is float


def test_numbers_that_were_cached_before_the_trace_stay() -> None:
    scales = [1.0]
    number = functools.cache(lambda n: [n * scales[0]])
    jitted = treeplay.jit(lambda x, n: x - number(n)[0], lower="aten", on_refusal="eager")
    before = number(7)
    for k in range(6):
        scales[0] = float(k)
        assert_same(jitted(torch.ones(3), k // 3), torch.ones(3) - number(k // 3)[0])
    assert number(7) is before


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_an_entry_that_a_trace_hits_and_then_drives_out_is_in_no_recording() -> None:
    """The entry that was left was found in each call, and the other was replayed as it had been."""
    names = ["a"]
    cached, twin = (functools.lru_cache(1)(lambda n: {"a": 1, "b": 2}[names[0]] * n) for _ in range(2))
    jitted = treeplay.jit(lambda x: x * cached(3) - cached(5), lower="aten", on_refusal="eager")
    for k in range(6):
        if k in (1, 3):
            names[0] = "a"
            for each in (cached, twin):
                each.cache_clear()
                each(3)
            names[0] = "b"
        assert_same(jitted(torch.ones(3)), torch.ones(3) * twin(3) - twin(5))


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("maxsize", [1, None])
def test_a_program_that_drops_each_entry_before_it_needs_it_is_not_recorded(maxsize: int | None) -> None:
    names = ["a"]
    cached = functools.lru_cache(maxsize)(lambda n: {"a": 1, "b": 2}[names[0]] * n)
    jitted = treeplay.jit(lambda x: x * cached(3) - cached(5), lower="aten")
    for _ in range(6):
        assert_same(jitted(torch.ones(3)), torch.full((3,), -2.0))
    assert jitted.statistics().replays == (0 if maxsize else 5)


@pytest.mark.parametrize("maxsize", [2, None])
def test_a_program_that_empties_a_cache_is_refused_at_its_line(maxsize: int | None) -> None:
    names = ["a"]
    cached = functools.lru_cache(maxsize)(lambda n: {"a": 1, "b": 2}[names[0]] * n)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * cached(3)
        cached.cache_clear()
        return y - 1

    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    jitted(torch.ones(3))
    cached(3)
    with pytest.raises(treeplay.Refusal) as caught:
        jitted(torch.ones(3))
    names[0] = "b"
    assert caught.value.op == "cache_clear" and caught.value.reason.where is not None
    assert caught.value.reason.where.source.strip() == "cached.cache_clear()"
    if maxsize is None:  # what the trace took out is there again
        assert cached(3) == 3

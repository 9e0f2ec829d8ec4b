"""Caches with a limit (`functools.lru_cache(maxsize=1)`): results and entries are right, and waiting for them costs little."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import assert_same, jit
from treeplay.torch_seam.fakes import FakeTensor


def table_of(limit: int | None, scales: list[float]) -> Any:
    return functools.lru_cache(limit)(lambda n: (torch.arange(n) - scales[0]).cumsum(0))


def _is_real(table: Any, *sizes: int) -> bool:
    """Whether the cache gives what the function computes; asking changes it."""
    return all(not isinstance(table(n), FakeTensor) and torch.equal(table(n), table.__wrapped__(n)) for n in sizes)


def _positions() -> Any:
    @functools.lru_cache(maxsize=1)
    def positions(n: int) -> torch.Tensor:
        out = torch.ones(n)
        out[1:] -= 3
        return out

    return positions


def test_explain_says_what_a_program_waits_for_and_waiting_costs_little() -> None:
    positions = _positions()
    jitted = treeplay.jit(lambda x: x - positions(3) + positions(4)[:3], lower="aten")
    for _ in range(200):
        jitted(torch.ones(3))
    assert "too early to record: " in jitted.explain() and "positions (lru_cache(maxsize=1))" in jitted.explain()
    assert jitted.statistics().refusals == 0
    assert jitted.statistics().not_replayed["too early to record"] == 199


def test_a_refusal_names_the_function_and_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treeplay.tree.recording._MOST_WAITS", 6)
    positions = _positions()
    jitted = treeplay.jit(lambda x: x - positions(3) + positions(4)[:3], lower="aten")
    with pytest.warns(UserWarning, match=r"(?s)positions \(lru_cache\(maxsize=1\)\).*in positions\n.*larger maxsize"):
        for _ in range(4):
            jitted(torch.ones(3))
    assert jitted.statistics().refusals == 1


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("limit", [1, 2, 8, None])
@pytest.mark.parametrize("change", ["asked before", "asked after", "cleared", "mixed"])
def test_a_table_of_a_plain_argument_stays_eagers(limit: int | None, change: str) -> None:
    drawn = random.Random(f"{limit} {change}")
    table, twin = table_of(limit, [2.0]), table_of(limit, [2.0])

    def program(x: torch.Tensor, sizes: tuple[int, ...], table: Callable[[int], torch.Tensor]) -> torch.Tensor:
        for n in sizes:
            x = x * 0.5 - table(n)[:2] * n
        return x

    jitted = jit(lambda x, sizes: program(x, sizes, table), on_refusal="eager")
    for k in range(40):
        sizes = ((3,), (3, 4), (4, 3, 4))[k // 4 % 3 if k < 24 else drawn.randrange(3)]
        if change in ("asked before", "mixed") and drawn.random() < 0.5:
            n = drawn.choice([3, 4, 5])
            assert_same(table(n), twin(n))
        x = torch.full((2,), float(k))
        assert_same(jitted(x, sizes), program(x, sizes, twin))
        if change in ("asked after", "mixed") and drawn.random() < 0.5:
            n = drawn.choice([3, 4, 5])
            assert_same(table(n), twin(n))
        if change in ("cleared", "mixed") and drawn.random() < 0.3:
            table.cache_clear()
            twin.cache_clear()
    assert _is_real(table, 3, 4, 5)


LAYERS: dict[str, Callable[[int], Any]] = {
    "a module": lambda n: torch.nn.Linear(n, 2),
    "a module in a list": lambda n: torch.nn.Sequential(torch.nn.LayerNorm(n), torch.nn.Linear(n, 2)),
    "a closure": lambda n: (lambda scale: lambda x: x - scale * x)(torch.randn(n)),
    "a partial": lambda n: functools.partial(torch.sub, torch.randn(n)),
    "deep": lambda n: [[[[[[[torch.randn(n)]]]]]]],
    "drawn": lambda n: torch.randn(n),
}


def _used(layer: Any, x: torch.Tensor) -> torch.Tensor:
    while isinstance(layer, list):
        layer = layer[0]
    return layer(x) if callable(layer) else x - layer


@pytest.mark.filterwarnings("ignore:treeplay runs")
@pytest.mark.parametrize("limit", [1, 2, None])
@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_cached_is_whole_and_eagers(limit: int | None, kind: str) -> None:
    """A trace left modules without weights in the cache, and took out of it what other calls had drawn."""
    layer, twin = functools.lru_cache(limit)(LAYERS[kind]), functools.lru_cache(limit)(LAYERS[kind])
    jitted = jit(lambda x: _used(layer(len(x)), x), on_refusal="eager")
    sizes = (4, 5, 6, 4, 6, 4, 6, 5, 4, 4, 5, 4, 4, 4)
    found = []
    for call, wanted in ((jitted, layer), (lambda x: _used(twin(len(x)), x), twin)):
        torch.manual_seed(3)
        found.append([])
        for k, n in enumerate(sizes):
            if k == 9:
                wanted.cache_clear()
            found[-1].append(call(torch.arange(float(n))).detach())
            if k % 4 == 3:
                found[-1].append(_used(wanted(n), torch.ones(n)).detach())
    for one, other in zip(*found, strict=True):
        assert_same(one, other)
    assert layer.cache_info().currsize == twin.cache_info().currsize


@pytest.mark.filterwarnings("ignore:treeplay runs")
def test_numbers_that_a_full_cache_drops_in_each_call_are_not_dropped_once_more() -> None:
    """A trace asked for them first, and so the call that ran as it is found others to be there."""
    found = []
    for make in (lambda program: jit(program, on_refusal="eager"), lambda program: program):
        scales = [1.0]
        inner = functools.lru_cache(1)(lambda n, scales=scales: scales[0] * n)
        outer = functools.lru_cache(1)(lambda n, inner=inner: torch.full((3,), inner(n) - inner(n + 1) * 2))
        called = make(lambda x, inner=inner, outer=outer: x * outer(3) - outer(4) * inner(3))
        found.append([])
        for k in range(12):
            scales[0] += k in (2, 5, 7)
            found[-1].append(called(torch.full((3,), float(k))))
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


def test_a_trace_that_misses_leaves_the_cache_as_it_was() -> None:
    drawn = functools.lru_cache(2)(lambda n: torch.randn(n))
    jitted = jit(lambda x: x - drawn(len(x)))
    jitted(torch.ones(3))
    drawn.cache_clear()
    kept = [drawn(n) for n in (7, 8)]
    jitted(torch.ones(3))  # which drops the oldest, once
    assert drawn(8) is kept[1] and drawn.cache_info().currsize == 2
    assert not isinstance(drawn(3), FakeTensor)

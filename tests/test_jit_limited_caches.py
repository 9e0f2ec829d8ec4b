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

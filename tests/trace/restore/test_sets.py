"""A set that is put back is iterated and popped as one that nobody touched."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from treeplay.trace.restore.sets import SetBefore, _is_known


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process without other threads, which earlier tests may have left."""
    monkeypatch.setattr("treeplay.trace.restore.sets.has_company", lambda: False)


ITEMS: dict[str, Callable[[random.Random], Any]] = {
    "small integers": lambda draw: draw.randrange(100),
    "integers": lambda draw: draw.randrange(-(1 << 40), 1 << 40),
    "integers that meet": lambda draw: draw.randrange(30) * 64,
    "texts": lambda draw: f"item {draw.randrange(300)}",
    "tuples and numbers": lambda draw: draw.choice([(draw.randrange(9),), draw.random(), draw.randrange(50)]),
}


def _some_history(draw: random.Random, item: Callable[[random.Random], Any], *sets: set[Any]) -> list[Any]:
    """The same done to each set, and what came of it."""
    given: list[Any] = []
    for _ in range(draw.randrange(60)):
        kind, value = draw.randrange(8), item(draw)
        values = {item(draw) for _ in range(draw.randrange(12))}
        for each in sets:
            if kind < 3:
                each.add(value)
            elif kind < 4:
                each.discard(value)
            elif kind < 5:
                each.update(values)
            elif kind < 6:
                each.difference_update(values)
            elif each:
                given.append(each.pop())
    return given


@pytest.mark.parametrize("kind", ITEMS)
def test_a_set_that_is_put_back_is_iterated_and_popped_as_before(kind: str) -> None:
    assert _is_known()
    for seed in range(200):
        draw, item = random.Random(seed), ITEMS[kind]
        one: set[Any] = set()
        twin: set[Any] = set()
        _some_history(draw, item, one, twin)
        before = SetBefore(one)
        _some_history(draw, item, one)
        before.fill(one)
        assert [*one] == [*twin], seed
        assert before.has_finger_of(one) or (before.table is not None and before.table[1] == 0), seed
        assert [one.pop() for _ in range(len(one))] == [twin.pop() for _ in range(len(twin))], seed


def test_a_set_without_a_known_table_gets_its_items_back() -> None:
    one = {1, 2, 3}
    before = SetBefore(one)
    before.table = None
    one.pop()
    before.fill(one)
    assert one == {1, 2, 3}


def test_a_set_that_was_popped_and_filled_again_gets_its_finger_back() -> None:
    one = {*range(20)}
    one.pop()
    before = SetBefore(one)
    one.add(one.pop())
    assert not before.has_finger_of(one)
    before.fill(one)
    assert before.has_finger_of(one)

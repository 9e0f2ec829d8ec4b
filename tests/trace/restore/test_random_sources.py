"""Generators of Python and NumPy: a draw shows, and is taken back."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from treeplay.trace.restore.random_sources import RandomSources, is_source

SOURCES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "Python's Random": (random.Random(1), lambda source: source.gauss(0, 1)),
    "NumPy's Generator": (numpy.random.default_rng(1), lambda source: source.normal()),
    "NumPy's RandomState": (numpy.random.RandomState(1), lambda source: source.normal()),
    "NumPy's Philox": (numpy.random.Philox(1), lambda source: int(source.random_raw())),
    "NumPy's MT19937": (numpy.random.MT19937(1), lambda source: int(source.random_raw())),
}


def anybodys(source: Any) -> bool:
    return True


@pytest.mark.parametrize("name", SOURCES)
def test_a_draw_shows_and_is_taken_back(name: str) -> None:
    source, draw = SOURCES[name]
    sources = RandomSources([object(), source])
    assert sources.moved(anybodys) is None
    drawn = [draw(source) for _ in range(3)]
    assert sources.moved(anybodys) == (name, source)
    for _ in range(2):
        sources.restore(anybodys)
    assert sources.moved(anybodys) is None and [draw(source) for _ in range(3)] == drawn


SEED: dict[str, Callable[[Any], Any]] = {
    "Python's Random": lambda source: source.seed(1),
    "NumPy's RandomState": lambda source: source.seed(1),
    "NumPy's MT19937": lambda source: source._legacy_seeding(1),
}


@pytest.mark.parametrize("name", SEED)
def test_seeding_shows_where_it_changes_nothing(name: str) -> None:
    source, draw = SOURCES[name]
    SEED[name](source)
    sources = RandomSources([source])
    sources.mark()
    assert sources.moved(anybodys) is None
    SEED[name](source)
    assert sources.moved(anybodys) == (name, source)
    sources.restore(anybodys)
    drawn = draw(source)
    SEED[name](source)
    assert draw(source) == drawn


@pytest.mark.parametrize("name", SOURCES)
def test_marked_ones_are_put_back_also_where_nobody_used_them(name: str) -> None:
    source, draw = SOURCES[name]
    before = RandomSources([source])
    drawn = draw(source)
    before.restore(anybodys)
    sources = RandomSources([source])
    sources.mark()
    sources.restore(lambda source: False)
    assert draw(source) == drawn


@pytest.mark.parametrize(
    ("name", "draw"), [("random", random.random), ("numpy.random", lambda: numpy.random.standard_normal())]
)
def test_the_global_ones_are_known(name: str, draw: Callable[[], float]) -> None:
    sources = RandomSources([])
    drawn = draw()
    moved = sources.moved(anybodys)
    assert moved is not None and moved[0] == name
    sources.restore(anybodys)
    assert draw() == drawn


def test_what_has_no_state_is_none() -> None:
    assert not any(map(is_source, (random.SystemRandom(), random, None, numpy.random)))
    assert RandomSources([random.SystemRandom()]).moved(anybodys) is None

"""Objects whose answers come from a hidden state: two calls that draw alike by chance must not freeze what was drawn."""

from __future__ import annotations

import itertools
import os
import random
import secrets
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support import assert_same, jit
from support.follows import Story, follows

Tensor = torch.Tensor


def _alike(make: Callable[[int], Any], draw: Callable[[Any], Any]) -> Any:
    """An object that draws the same three times, and then something else."""
    for seed in range(1000):
        source = make(seed)
        drawn = [draw(source) for _ in range(8)]
        if drawn[0] == drawn[1] == drawn[2] and len(set(drawn)) > 1:
            return make(seed)
    raise AssertionError("no such seed")


class Dice(random.Random):
    sides = 2

    def throw(self) -> int:
        return self.randint(1, self.sides)


SOURCES: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "choice": (random.Random, lambda r: r.choice([2.0, 3.0])),
    "randint": (random.Random, lambda r: r.randint(2, 3)),
    "randrange": (random.Random, lambda r: r.randrange(2, 4)),
    "getrandbits": (random.Random, lambda r: r.getrandbits(1) + 2),
    "comparison": (random.Random, lambda r: 2.0 if r.random() < 0.5 else 3.0),
    "shuffle": (random.Random, lambda r: r.sample([2.0, 3.0], 2)[0]),
    "kind of one's own": (Dice, lambda r: r.throw()),
    "bound method": (lambda seed: random.Random(seed).random, lambda r: 2.0 if r() < 0.5 else 3.0),
    "generator of NumPy": (np.random.default_rng, lambda r: float(r.choice([2.0, 3.0]))),
    "integers of NumPy": (np.random.default_rng, lambda r: int(r.integers(2, 4))),
    "permutation of NumPy": (np.random.default_rng, lambda r: float(r.permutation([2.0, 3.0])[0])),
    "comparison of NumPy": (np.random.default_rng, lambda r: 2.0 if r.random() < 0.5 else 3.0),
    "state of NumPy": (np.random.RandomState, lambda r: float(r.choice([2.0, 3.0]))),
    "generator of torch on the host": (
        lambda seed: torch.Generator().manual_seed(seed),
        lambda r: int(torch.randint(2, 4, (), generator=r)),
    ),
}


@pytest.mark.parametrize("where", ["closure", "attribute", "dict"])
@pytest.mark.parametrize(("make", "draw"), SOURCES.values(), ids=SOURCES)
@follows(refused="", calls=8)
def test_a_random_object_that_draws_alike(make: Callable[[int], Any], draw: Callable[[Any], Any], where: str) -> Story:
    source = _alike(make, draw)
    holder, table = types.SimpleNamespace(source=source), {"source": source}
    if where == "closure":
        yield lambda x: x * draw(source) - 1
    elif where == "attribute":
        yield lambda x: x * draw(holder.source) - 1
    else:
        yield lambda x: x * draw(table["source"]) - 1


GLOBAL: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "choice": (random.seed, lambda _: random.choice([2.0, 3.0])),
    "random": (random.seed, lambda _: 2.0 if random.random() < 0.5 else 3.0),
    "NumPy": (np.random.seed, lambda _: float(np.random.choice([2.0, 3.0]))),
    "randint of NumPy": (np.random.seed, lambda _: int(np.random.randint(2, 4))),
}


@pytest.mark.parametrize(("make", "draw"), GLOBAL.values(), ids=GLOBAL)
@follows(refused="", calls=8, worlds=1)
def test_the_random_numbers_of_a_module_that_are_alike(make: Callable[[int], Any], draw: Callable[[Any], Any]) -> Story:
    _alike(make, draw)  # which seeds it anew
    yield lambda x: x * draw(None) - 1


ITERATORS: dict[str, Callable[[], Any]] = {
    "cycle": lambda: itertools.cycle([2.0, 2.0, 2.0, 3.0]),
    "iterator of a list": lambda: iter([2.0] * 3 + [3.0] * 9),
    "generator": lambda: (2.0 + (k > 2) for k in range(99)),
    "repeat": lambda: itertools.chain(itertools.repeat(2.0, 3), itertools.repeat(3.0)),
    "bound next": lambda: itertools.cycle([2.0, 2.0, 2.0, 3.0]).__next__,
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=ITERATORS)
@follows(refused="", calls=8)
def test_an_iterator_that_gives_the_same_at_first(make: Callable[[], Any]) -> Story:
    holder = types.SimpleNamespace(source=make())

    def program(x: Tensor) -> Tensor:
        source = holder.source
        return x * (source() if callable(source) else next(source)) - 1

    yield program


UNREPEATABLE: dict[str, Callable[[], int]] = {
    "secrets": lambda: secrets.randbits(1),
    "uuid4": lambda: uuid.uuid4().int & 1,
    "urandom": lambda: os.urandom(1)[0] & 1,
    "SystemRandom": lambda: random.SystemRandom().getrandbits(1),
}


@pytest.mark.parametrize("draw", UNREPEATABLE.values(), ids=UNREPEATABLE)
def test_what_no_seed_repeats_is_never_frozen(draw: Callable[[], int]) -> None:
    jitted = jit(lambda x: x * (draw() + 2) - 1, on_refusal="eager")
    with pytest.warns(UserWarning, match="eagerly"):
        found = [float(jitted(torch.ones(()))) for _ in range(64)]
    assert set(found) == {1.0, 2.0}


@pytest.mark.parametrize("is_own", [True, False])
@follows(refused="initial_seed")
def test_the_seed_of_a_generator_of_torch(is_own: bool) -> Story:
    generator = torch.Generator() if is_own else torch.default_generator
    generator.manual_seed(3)
    ask = generator.initial_seed if is_own else torch.initial_seed
    yield lambda x: x * (2 if ask() != 123 else 3) - 1
    generator.manual_seed(123)
    yield


@follows()
def test_a_generator_of_torch_that_is_replaced() -> Story:
    holder = types.SimpleNamespace(generator=torch.Generator().manual_seed(3))
    yield lambda x: x * torch.randn(3, generator=holder.generator) - 1
    holder.generator.manual_seed(5)
    yield
    holder.generator = torch.Generator().manual_seed(7)
    yield
    holder.generator = torch.default_generator
    yield


@follows(calls=3)
def test_a_generator_of_torch_chosen_by_name() -> Story:
    generators = {name: torch.Generator().manual_seed(seed) for seed, name in enumerate("ab")}
    chosen = types.SimpleNamespace(name="a")
    yield lambda x: x * torch.rand(3, generator=generators[chosen.name]) - 1
    chosen.name = "b"
    yield
    chosen.name = "a"
    yield


def test_a_clock_that_is_only_compared_is_never_frozen() -> None:
    import time

    holder = types.SimpleNamespace(until=time.monotonic() + 0.3)
    jitted = jit(lambda x: x * (2 if time.monotonic() < holder.until else 3) - 1, on_refusal="eager")
    found = []
    with pytest.warns(UserWarning, match="eagerly"):
        while time.monotonic() < holder.until + 0.1:
            found.append(float(jitted(torch.ones(()))))
    assert_same(found[-1], 2.0)

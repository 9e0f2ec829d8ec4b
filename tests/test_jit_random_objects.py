"""Random generators that a program holds: Python's and NumPy's freeze nothing, torch's are those of the day."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import treeplay
from support import assert_same, jit
from treeplay.trace import jit as trace_jit

LOCAL = random.Random(5)


class Dice(random.Random):
    """A generator of the user's own class."""


class Holder:
    def __init__(self, source: Any) -> None:
        self.source = source


def python(seed: int) -> Any:
    return random.Random(seed)


DRAWS: dict[str, tuple[Callable[[int], Any], Callable[[Any], float]]] = {
    "Random": (random.Random, lambda source: float(source.randrange(1, 3))),
    "a class of its own": (Dice, lambda source: float(source.choice([1, 2]))),
    "Generator": (numpy.random.default_rng, lambda source: float(source.integers(1, 3))),
    "Generator of Mersenne twisters": (
        lambda seed: numpy.random.Generator(numpy.random.MT19937(seed)),
        lambda source: float(source.integers(1, 3)),
    ),
    "RandomState": (numpy.random.RandomState, lambda source: float(source.randint(1, 3))),
    "BitGenerator": (numpy.random.PCG64, lambda source: float(source.random_raw() % 2 + 1)),
}


def seed_with_equal_draws(make: Callable[[int], Any], draw: Callable[[Any], float], count: int = 2) -> int:
    """A seed whose first draws are alike, and the next is not."""
    for seed in range(1000):
        source = make(seed)
        drawn = [draw(source) for _ in range(count + 1)]
        if len(set(drawn[:count])) == 1 and drawn[count] != drawn[0]:
            return seed
    raise AssertionError("none")


@pytest.mark.parametrize("where", ["closure", "attribute", "item", "argument", "bound"])
@pytest.mark.parametrize("what", DRAWS)
def test_draws_that_are_alike_by_chance_do_not_freeze(what: str, where: str) -> None:
    make, draw = DRAWS[what]
    seed = seed_with_equal_draws(make, draw)
    source, twin = make(seed), make(seed)
    holder, table = Holder(source), {"source": [source]}
    programs: dict[str, Callable[..., Any]] = {
        "closure": lambda x: x * draw(source),
        "attribute": lambda x: x * draw(holder.source),
        "item": lambda x: x * draw(table["source"][0]),
        "argument": lambda x, given: x * draw(given),
    }
    if where == "bound":
        if what == "BitGenerator":
            pytest.skip("its methods are drawn by others")
        bound = getattr(source, "random" if what != "RandomState" else "random_sample")
        # Numbers that differ are found by the log; here only whether the state moves may tell.
        programs["bound"] = lambda x: x * (1.0 if bound() < 2 else 2.0)
    jitted = jit(programs[where], on_refusal="eager")
    more = (source,) if where == "argument" else ()
    with pytest.warns(UserWarning, match="draws from or seeds this generator"):
        for _ in range(6):
            expected = torch.ones(2) * (1.0 if where == "bound" else draw(twin))
            assert_same(jitted(torch.ones(2), *more), expected)
    assert jitted.statistics().refusals == 1


def test_a_refusal_names_the_generator_and_leaves_it_as_it_was() -> None:
    jitted = jit(lambda x: x * (1.0 if LOCAL.random() < 2 else 2.0))
    jitted(torch.ones(2))
    before = LOCAL.getstate()
    with pytest.raises(treeplay.Refusal, match="Python's Random: the program draws"):
        jitted(torch.ones(2))
    assert LOCAL.getstate() == before


def test_a_program_that_does_not_draw_is_recorded() -> None:
    sources = SimpleNamespace(
        a=random.Random(1), b=numpy.random.default_rng(1), c=numpy.random.RandomState(1), d=random.SystemRandom()
    )

    def step(x: torch.Tensor) -> torch.Tensor:
        return x - 1 if sources.a is sources.b else x * 3 - float(sources.c is sources.d)

    jitted = jit(step)
    for _ in range(4):
        x = torch.randn(3)
        assert_same(jitted(x), x * 3)
        sources.a.random()
        sources.b.random()
    assert jitted.statistics().replays == 3


GENERATOR = torch.Generator().manual_seed(1)


@pytest.mark.parametrize("where", ["attribute", "global", "item", "closure"])
def test_a_generator_that_is_replaced_is_drawn_from_no_more(where: str) -> None:
    global GENERATOR
    current = torch.Generator().manual_seed(1)
    holder, table = Holder(current), {"source": current}
    GENERATOR = current
    programs: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "attribute": lambda x: x - torch.rand(2, generator=holder.source),
        "global": lambda x: x - torch.rand(2, generator=GENERATOR),
        "item": lambda x: x - torch.rand(2, generator=table["source"]),
        "closure": lambda x: x - torch.rand(2, generator=current),
    }
    jitted = jit(programs[where])
    twin = torch.Generator().manual_seed(1)
    for call in range(9):
        if call and call % 3 == 0:
            twin = torch.Generator().manual_seed(call)
            current = torch.Generator().manual_seed(call)
            holder.source = table["source"] = GENERATOR = current
        x = torch.randn(2)
        assert_same(jitted(x), x - torch.rand(2, generator=twin))


def test_two_generators_that_are_exchanged() -> None:
    holder = SimpleNamespace(a=torch.Generator().manual_seed(1), b=torch.Generator().manual_seed(2))
    twins = SimpleNamespace(a=torch.Generator().manual_seed(1), b=torch.Generator().manual_seed(2))

    def draw(held: Any) -> torch.Tensor:
        return torch.rand(2, generator=held.a) - torch.rand(2, generator=held.b) * 2

    jitted = jit(lambda: draw(holder))
    for call in range(8):
        assert_same(jitted(), draw(twins))
        if call % 2:
            for held in (holder, twins):
                held.a, held.b = held.b, held.a


reseed = random.seed
OWN, OF_NUMPY = random.Random(3), numpy.random.RandomState(3)
SEEDED: dict[str, tuple[Callable[[], Any], Callable[[], float]]] = {
    "random": (lambda: random.seed(5), random.random),
    "numpy.random": (lambda: numpy.random.seed(5), numpy.random.random),
    "of its own": (lambda: OWN.seed(5), OWN.random),
    "of NumPy": (lambda: OF_NUMPY.seed(5), OF_NUMPY.random_sample),
    "by another name": (lambda: reseed(5), random.random),
}


@pytest.mark.parametrize("name", SEEDED)
def test_a_program_that_seeds_a_generator_does_so_in_each_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody draws before it is recorded, and the generator stands there already. So it is in a thread that runs
    alone: a test's need not."""
    monkeypatch.setattr(trace_jit, "has_company", lambda: False)
    seed, draw = SEEDED[name]

    def step(x: torch.Tensor) -> torch.Tensor:
        seed()
        return x * 2 - 1

    jitted = jit(step, on_refusal="eager")
    jitted(torch.ones(2))
    with pytest.warns(UserWarning, match=r"seeds this generator[^\n]*\n *at *\S*test_jit_random_objects.py"):
        jitted(torch.ones(2))
    jitted(torch.ones(2))
    drawn = [(jitted(torch.ones(2)), draw())[1] for _ in range(4)]
    seed()
    assert drawn == [draw()] * 4


def test_a_generator_that_is_seeded_in_no_call_is_no_reason_to_refuse() -> None:
    state = SimpleNamespace(seed=2.5, rng=numpy.random.RandomState(3), at=None)

    def step(x: torch.Tensor) -> torch.Tensor:
        if state.at is not None:
            random.seed(state.at)
            state.rng.seed(state.at)
        return x * state.seed - 1

    jitted = jit(step)
    for _ in range(4):
        assert torch.equal(jitted(torch.ones(2)), torch.ones(2) * 2.5 - 1)
    assert jitted.statistics().replays == 3


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_attention_is_computed_again_in_a_checkpoint(dropout: float) -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def attend(x: torch.Tensor) -> torch.Tensor:
        y = (x @ weight)[:, None]
        return F.scaled_dot_product_attention(y, y - 1, y * 2, dropout_p=dropout)

    def step(x: torch.Tensor) -> torch.Tensor | None:
        weight.grad = None
        (checkpoint(attend, x, use_reentrant=False) - x[:, None]).square().mean().backward()
        return weight.grad

    jitted = jit(step)
    for number in range(4):
        x = torch.randn(2, 3, 4)
        with torch.random.fork_rng():
            torch.manual_seed(number)
            found = jitted(x)
        torch.manual_seed(number)
        assert_same(found, step(x))
    assert jitted.statistics().replays == 3

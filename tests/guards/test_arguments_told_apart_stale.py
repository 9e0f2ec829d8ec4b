"""Arguments that count as what they hold, come in turn, and that the program tells from each other, beside an eager twin."""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from support import assert_same, jit

Program = Callable[..., Tensor]
MANY = 24


class Batch:
    def __init__(self, value: float) -> None:
        self.t = torch.full((3,), value)


class World:
    """Some batches, and what a program may know of them."""

    def __init__(self) -> None:
        self.batches = [Batch(2.0) for _ in range(3)]
        self.first = self.batches[0]
        self.holder = Batch(1.0)
        self.holder.other = self.first  # type: ignore[attr-defined]
        self.numbers = {self.first: 2.0}
        self.members = {self.first}
        self.listed = [self.first]
        self.known = {id(self.first)}
        self.hashes = {hash(self.first)}
        self.reference = weakref.ref(self.first)
        self.weak = weakref.WeakKeyDictionary({self.first: 2.0})
        self.last: Any = None


WAYS: dict[str, Callable[[World], Program]] = {
    "is": lambda w: lambda x, b: x * (2 if b is w.first else 3) - b.t,
    "nothing of it read": lambda w: lambda x, b: x * (2 if b is w.first else 3) - 1,
    "attribute": lambda w: lambda x, b: x * (2 if b is w.holder.other else 3) - b.t,  # type: ignore[attr-defined]
    "key": lambda w: lambda x, b: x * w.numbers.get(b, 3.0) - b.t,
    "has key": lambda w: lambda x, b: x * (2 if b in w.numbers else 3) - b.t,
    "member": lambda w: lambda x, b: x * (2 if b in w.members else 3) - b.t,
    "item": lambda w: lambda x, b: x * (2 if b in w.listed else 3) - b.t,
    "id": lambda w: lambda x, b: x * (2 if id(b) in w.known else 3) - b.t,
    "ids of several": lambda w: lambda x, b: x * (2 if next(iter(map(id, [b]))) in w.known else 3) - b.t,
    "hash": lambda w: lambda x, b: x * (2 if hash(b) in w.hashes else 3) - b.t,
    "weak reference": lambda w: lambda x, b: x * (2 if w.reference() is b else 3) - b.t,
    "weak reference made": lambda w: lambda x, b: x * (2 if w.reference == weakref.ref(b) else 3) - b.t,
    "weak key": lambda w: lambda x, b: x * w.weak.get(b, 3.0) - b.t,
}


def beside_eager(program: Callable[[World], Program], orders: list[int], **options: Any) -> Any:
    """The statistics of a program that batches come to in this order, after batches that come once."""
    mine, twin = World(), World()
    jitted, eager = jit(program(mine), on_refusal="eager", **options), program(twin)
    for call in range(MANY):  # from here on the class counts as what it holds
        x = torch.arange(3.0) + call
        assert_same(jitted(x, Batch(2.0)), eager(x, Batch(2.0)))
    for call, at in enumerate(orders * 2):
        x = torch.arange(3.0) - call
        assert_same(jitted(x, mine.batches[at]), eager(x, twin.batches[at]))
    return jitted.statistics()


@pytest.mark.parametrize("program", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(
    "orders", [[1, 0, 2], [0, 0, 0, 1, 2], [1, 1, 2, 2, 0, 1]], ids=["in turn", "first", "first last"]
)
def test_an_argument_that_the_program_tells_from_others(program: Callable[[World], Program], orders: list[int]) -> None:
    beside_eager(program, orders)


def test_a_key_of_a_function_that_keeps_its_answers() -> None:
    def program(w: World) -> Program:
        answers = [2.0]
        scale = functools.lru_cache(maxsize=None)(lambda batch: answers[0])
        scale(w.first)
        answers[0] = 3.0
        return lambda x, b: x * scale(b) - b.t

    beside_eager(program, [1, 0, 2])


@pytest.mark.parametrize("name", ["is", "has key", "weak key", "weak reference made"])
def test_strangers_share_a_recording(name: str) -> None:
    statistics = beside_eager(WAYS[name], [1, 2, 1, 2])
    assert statistics.recordings <= 2
    assert statistics.replays >= MANY // 2


def test_the_argument_of_the_call_before() -> None:
    def program(w: World) -> Program:
        def step(x: Tensor, b: Batch) -> Tensor:
            y = x * (2 if b is w.last else 3) - b.t
            w.last = b
            return y

        return step

    beside_eager(program, [0, 1, 1, 2, 2, 2, 0, 1, 0, 0])


def test_the_argument_of_the_call_before_in_a_dictionary() -> None:
    def program(w: World) -> Program:
        w.last = {"b": Batch(2.0), "n": 1}

        def step(x: Tensor, b: Batch) -> Tensor:
            y = x * (2 if b is w.last["b"] else 3) - b.t
            w.last = {"b": b, "n": 1}
            return y

        return step

    beside_eager(program, [0, 1, 1, 2, 2, 2, 0, 1, 0, 0])


def test_two_arguments_that_are_one() -> None:
    def program(x: Tensor, a: Batch, b: Batch) -> Tensor:
        return x * (2 if a is b else 3) - a.t

    jitted, batches = jit(program, on_refusal="eager"), [Batch(2.0) for _ in range(3)]
    for call in range(MANY):
        x, a, b = torch.arange(3.0) + call, Batch(2.0), Batch(2.0)
        assert_same(jitted(x, a, b), program(x, a, b))
    for call, (one, other) in enumerate([(0, 1), (0, 0), (1, 0), (2, 2), (1, 2)] * 3):
        x = torch.arange(3.0) - call
        assert_same(jitted(x, batches[one], batches[other]), program(x, batches[one], batches[other]))


@dataclass
class Config:
    scale: float


KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1.0],
    "dict": lambda: {"a": 1.0},
    "dataclass": lambda: Config(1.0),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_containers_among_the_arguments(make: Callable[[], Any]) -> None:
    own = [make() for _ in range(3)]
    known = {"it": own[0]}
    program = lambda x, c: x * (2 if c is known["it"] else 3) - len(own)  # noqa: E731
    jitted = jit(program, on_refusal="eager")
    for call, at in enumerate([1, 1, 1, 2, 0, 0, 0, 1, 2, 0]):
        x = torch.arange(3.0) - call
        assert_same(jitted(x, own[at]), program(x, own[at]))


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_a_container_that_takes_the_place_of_another_in_the_state(make: Callable[[], Any]) -> None:
    own = [make() for _ in range(3)]
    known = [own[0]]
    program = lambda x, c: x * (2 if c is known[0] else 3) - 1  # noqa: E731
    jitted = jit(program, on_refusal="eager")
    for call, (here, at) in enumerate([(0, 1)] * 4 + [(2, 1), (2, 2), (1, 1), (1, 2), (0, 1), (0, 0)]):
        known[0] = own[here]
        x = torch.arange(3.0) - call
        assert_same(jitted(x, own[at]), program(x, own[at]))


MUTABLE = KINDS | {
    "deque": lambda: collections.deque([1.0]),
    "namespace": lambda: types.SimpleNamespace(scale=1.0),
    "tuple with a list": lambda: ([1.0], 2),
    "list of a tensor": lambda: [torch.ones(3)],
}


@pytest.mark.parametrize("make", MUTABLE.values(), ids=MUTABLE)
def test_two_arguments_that_were_one(make: Callable[[], Any]) -> None:
    program = lambda x, a, b: x * (2 if a is b else 3) - 1  # noqa: E731
    one_then_two(program, make, lambda other: other)


@pytest.mark.parametrize("make", MUTABLE.values(), ids=MUTABLE)
def test_an_argument_that_was_within_another_one(make: Callable[[], Any]) -> None:
    program = lambda x, a, b: x * (2 if a is b[0] else 3) - 1  # noqa: E731
    one_then_two(program, make, lambda other: [other])


def test_an_argument_that_was_changed_by_way_of_another_one() -> None:
    def program(x: Tensor, a: list[float], b: list[float]) -> Tensor:
        a.append(1.0)
        y = x * len(b) - 1
        a.pop()
        return y

    one_then_two(program, lambda: [1.0], lambda other: other)


def one_then_two(program: Program, make: Callable[[], Any], wrap: Callable[[Any], Any]) -> None:
    """A program that an object comes to twice, and then two of them."""
    jitted = jit(program, on_refusal="eager")
    for call in range(10):
        x, one = torch.arange(3.0) + call, make()
        other = one if call < 4 else make()
        assert_same(jitted(x, one, wrap(other)), program(x, one, wrap(other)))
    assert jitted.statistics().recordings == 2


def test_equal_tuples_are_one_value() -> None:
    program = lambda x, a, b: x * len(a) - len(b)  # noqa: E731
    jitted, size = jit(program, on_refusal="raise"), (2, 3)
    for call in range(8):
        x, other = torch.arange(3.0) + call, size if call < 4 else tuple(iter(size))
        assert_same(jitted(x, size, other), program(x, size, other))
    assert jitted.statistics().recordings == 1

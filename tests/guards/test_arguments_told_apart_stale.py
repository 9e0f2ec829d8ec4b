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
from support.follows import Holder

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


@dataclass(slots=True)
class InSlots:
    n: int


@dataclass(eq=False, slots=True)
class Hashed:
    n: int


class Slotted:
    __slots__ = ("n", "t")

    def __init__(self, n: int) -> None:
        self.n, self.t = n, torch.ones(3)


WITHOUT_WEAK_REFERENCES: dict[str, Callable[[int], Any]] = {"record": InSlots, "by address": Hashed, "class": Slotted}


@pytest.mark.parametrize("make", WITHOUT_WEAK_REFERENCES.values(), ids=WITHOUT_WEAK_REFERENCES)
def test_an_object_without_weak_references_is_told_apart(make: Callable[[int], Any]) -> None:
    program = lambda w: lambda x, a: x * (2 if a is w.value[0] else 3) - a.n  # noqa: E731
    by_turns(program, make)


@pytest.mark.parametrize("make", WITHOUT_WEAK_REFERENCES.values(), ids=WITHOUT_WEAK_REFERENCES)
def test_an_object_without_weak_references_that_is_changed_here_and_read_there(make: Callable[[int], Any]) -> None:
    def program(w: Holder) -> Program:
        def step(x: Tensor, a: Any) -> Tensor:
            a.n += 1
            return x * w.value[0].n - a.n

        return step

    by_turns(program, make)


@pytest.mark.parametrize("make", [Hashed, Slotted])
def test_an_object_without_weak_references_as_a_key(make: Callable[[int], Any]) -> None:
    by_turns(lambda w: lambda x, a: x * w.keys.get(a, 3) - a.n, make)


@pytest.mark.parametrize("make", [Hashed, Slotted])
def test_an_object_without_weak_references_as_a_key_of_an_argument(make: Callable[[int], Any]) -> None:
    by_turns(lambda w: lambda x, a, d: x * d.get(a, 3) - a.n, make, lambda w: (dict(w.keys),))


def by_turns(
    program: Callable[[Holder], Program],
    make: Callable[[int], Any],
    more: Callable[[Holder], tuple[Any, ...]] = lambda w: (),
) -> None:
    """A program that gets new objects, and then in turn those that it knows."""
    worlds = [Holder([make(1) for _ in range(3)]) for _ in range(2)]
    for world in worlds:
        world.keys = {world.value[0]: 2} if make is not InSlots else {}  # type: ignore[attr-defined]
    jitted, eager = jit(program(worlds[0]), on_refusal="eager"), program(worlds[1])
    for call, at in enumerate([None] * MANY + [1, 2, 0, 0, 1, 0, 2]):
        x = torch.arange(3.0) + call
        one, other = (make(1) if at is None else world.value[at] for world in worlds)
        assert_same(jitted(x, one, *more(worlds[0])), eager(x, other, *more(worlds[1])))


@pytest.mark.parametrize("make", [lambda at: {"a": at}, lambda at: [at]], ids=["dict", "list"])
def test_state_that_is_replaced_in_each_call_beside_a_new_argument(make: Callable[[float], Any]) -> None:
    known = Holder(None)
    program = lambda x, c: x * (2 if c is known.value else 3) - len(known.value)  # noqa: E731
    jitted = jit(program, on_refusal="raise")
    for call in range(300):
        known.value = make(1.0)
        others = [make(2.0) for _ in range(call % 4 + 1)]
        x = torch.arange(3.0) + call
        assert_same(jitted(x, others[-1]), program(x, others[-1]))
    assert jitted.statistics().recordings == 1


def test_an_object_dies_with_a_list_that_an_argument_could_have_been() -> None:
    def program(w: Holder) -> Program:
        return lambda x, c: x * (2 if w.reference() is None else 3) - len(w.value[0]) - len(c)

    worlds = []
    for _ in range(2):
        batch = Batch(1.0)
        worlds.append(Holder([[batch]]))
        worlds[-1].reference = weakref.ref(batch)  # type: ignore[attr-defined]
        del batch
    jitted, eager = jit(program(worlds[0]), on_refusal="eager"), program(worlds[1])
    for call in range(10):
        if call == 5:
            for world in worlds:
                world.value[0] = [None]
        x = torch.arange(3.0) + call
        assert_same(jitted(x, [1]), eager(x, [1]))


@pytest.mark.parametrize("make", [lambda: Batch(1.0), lambda: Config(1.0)], ids=["object", "record"])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_slot_takes_an_argument_to_which_a_weak_reference_leads(make: Callable[[], Any], is_inside: bool) -> None:
    def program(w: Holder, reference: weakref.ref[Any]) -> Program:
        def step(x: Tensor, a: Any) -> Tensor:
            last = w.value["k"] if is_inside else w.value
            y = x * (2 if reference() is last else 3) - 1
            w.value = {"k": a, "y": y} if is_inside else a
            return y

        return step

    known = [make() for _ in range(2)]
    mine, twin = (Holder({"k": make(), "y": torch.ones(3)} if is_inside else make()) for _ in range(2))
    jitted, eager = (
        jit(program(mine, weakref.ref(known[0])), on_refusal="eager"),
        program(twin, weakref.ref(known[1])),
    )
    for call in range(14):
        x, (one, other) = torch.arange(3.0) + call, known if call in (4, 8, 9) else (make(), make())
        assert_same(jitted(x, one), eager(x, other))


@pytest.mark.parametrize(
    "wrap", [lambda a: (a, 1), lambda a: ((a,),), lambda a: frozenset([a])], ids=["tuple", "two", "set"]
)
def test_an_argument_within_a_key_of_another_argument(wrap: Callable[[Any], Any]) -> None:
    known = Hashed(1)
    program = lambda x, a, d: x * d.get(wrap(a), 3) - a.n  # noqa: E731
    jitted = jit(program, on_refusal="eager")
    for call in range(MANY + 6):
        x, a = torch.arange(3.0) + call, known if call in (MANY, MANY + 3) else Hashed(1)
        assert_same(jitted(x, a, {wrap(known): 5}), program(x, a, {wrap(known): 5}))
    assert jitted.statistics().recordings == 2


@pytest.mark.parametrize(
    "wrap", [lambda a: (a, 1), lambda a: ((a,),), lambda a: frozenset([a])], ids=["tuple", "two", "set"]
)
def test_an_argument_within_a_key_of_a_function_that_keeps_its_answers(wrap: Callable[[Any], Any]) -> None:
    def program(w: World) -> Program:
        answers = [2.0]
        scale = functools.lru_cache(maxsize=None)(lambda one, *, other=None: answers[0])
        scale(1, other=wrap(w.first))
        answers[0] = 3.0
        return lambda x, b: x * scale(1, other=wrap(b)) - b.t

    beside_eager(program, [1, 0, 2])

"""Records that a program replaces in each call: numbers in them are inputs, and each replay stores a new one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from support import assert_same, jit
from support.records import CALLS, Program, World, beside_eager


@dataclass(frozen=True)
class Frozen:
    step: int
    scale: float
    x: Tensor


@dataclass
class Plain:
    step: int
    scale: float
    x: Tensor


@dataclass(slots=True)
class Slotted:
    step: int
    scale: float
    x: Tensor


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    step: int
    scale: float
    x: Tensor


@dataclass(frozen=True, eq=False)
class ByAddress:
    step: int
    scale: float
    x: Tensor


@dataclass(frozen=True)
class Heir(Frozen):
    more: Tensor = field(default_factory=lambda: torch.full((3,), 2.0))


@dataclass(kw_only=True)
class Named:
    step: int
    scale: float
    x: Tensor
    mode: str = "a"


@dataclass
class Derived:
    step: int
    scale: float
    x: Tensor
    total: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.total = self.x * 2 - self.step


@dataclass
class Given:
    step: int
    scale: float
    x: Tensor
    by: dataclasses.InitVar[float] = 2.0

    def __post_init__(self, by: float) -> None:
        self.x = self.x * by - 1


@dataclass(frozen=True)
class Checked:
    step: int
    scale: float
    x: Tensor

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError("step")
        object.__setattr__(self, "x", self.x * 0.5)

    @property
    def doubled(self) -> Tensor:
        return self.x * 2 - self.scale

    def moved(self, x: Tensor) -> Checked:
        return replace(self, step=self.step + 1, scale=self.scale * 0.99, x=self.doubled + x)


KINDS: list[Any] = [Frozen, Plain, Slotted, FrozenSlotted, ByAddress, Heir, Named]


def threes() -> Tensor:
    return torch.full((3,), 3.0)


def replaced(w: Any, x: Tensor) -> Tensor:
    s = w.state
    y = s.x * 0.9 + x * s.scale
    w.state = replace(s, step=s.step + 1, scale=s.scale * 0.99, x=y)
    return y.sum() * 2 - s.step


def made(w: Any, x: Tensor) -> Tensor:
    s = w.state
    y = s.x * 0.9 + x * s.scale
    w.state = type(s)(step=s.step + 1, scale=s.scale * 0.99, x=y)
    return y.sum() * 2 - s.step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [replaced, made])
def test_a_record_is_replaced_in_each_call(program: Program, kind: Any) -> None:
    def put(w: Any) -> None:
        w.state = kind(step=7, scale=0.5, x=threes() - 1)

    done = beside_eager(program, lambda: World(state=kind(step=0, scale=1.0, x=threes())), [put])
    assert (done.recordings, done.replays) == (1, 2 * CALLS - 1)


@pytest.mark.parametrize("kind", [Derived, Given, Checked])
def test_what_a_constructor_does_is_done_once(kind: Any) -> None:
    done = beside_eager(made, lambda: World(state=kind(step=0, scale=1.0, x=threes())))
    assert (done.recordings, done.replays) == (1, CALLS - 1)


def test_methods_and_properties_of_a_record_are_followed() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.state = w.state.moved(x)
        return w.state.doubled - x

    done = beside_eager(program, lambda: World(state=Checked(0, 1.0, threes())))
    assert (done.recordings, done.replays) == (1, CALLS - 1)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Outer:
    inner: Any
    n: int


def grown(s: Any, x: Tensor) -> Any:
    return replace(s, step=s.step + 1, scale=s.scale * 0.9, x=s.x * s.scale - x)


def in_record(w: Any, x: Tensor) -> Tensor:
    s = w.state
    w.state = replace(s, inner=grown(s.inner, x), n=s.n + 2)
    return s.inner.x * s.n - w.state.inner.step


def in_tuple(w: Any, x: Tensor) -> Tensor:
    a, b = w.state
    w.state = Pair(grown(a, x), grown(b, x * 2))
    return w.state.left.x * 2 - b.x * a.step


def in_dict(w: Any, x: Tensor) -> Tensor:
    w.state = {name: grown(s, x - len(name)) for name, s in w.state.items()}
    return w.state["a"].x * 2 - w.state["bc"].x


def in_list(w: Any, x: Tensor) -> Tensor:
    w.state[1] = grown(w.state[1], x)
    return w.state[1].x * 2 - w.state[0].x * w.state[1].step


def in_deeper(w: Any, x: Tensor) -> Tensor:
    s = w.state
    a, d = s.inner
    w.state = Outer((grown(a, x), {"k": grown(d["k"], x - 1)}), s.n + 1)
    return w.state.inner[0].x * 3 - w.state.inner[1]["k"].x * s.n


def one(kind: Any = Frozen) -> Any:
    return kind(step=1, scale=0.5, x=threes())


NESTED: dict[str, tuple[Program, Callable[[Any], Any], int]] = {
    "in a record": (in_record, lambda kind: Outer(one(kind), 1), 1),
    "in a tuple": (in_tuple, lambda kind: Pair(one(kind), one(kind)), 1),
    "in a dict": (in_dict, lambda kind: {"a": one(kind), "bc": one(kind)}, 1),
    # Of the one that the program leaves where it is, another needs a recording.
    "in a list that stays": (in_list, lambda kind: [one(kind), one(kind)], 2),
    "deeper": (in_deeper, lambda kind: Outer((one(kind), {"k": one(kind)}), 1), 1),
}


@pytest.mark.parametrize(("program", "make", "recordings"), NESTED.values(), ids=NESTED)
@pytest.mark.parametrize("kind", [Frozen, Plain, Slotted])
def test_a_record_within_something(program: Program, make: Callable[[Any], Any], recordings: int, kind: Any) -> None:
    done = beside_eager(program, lambda: World(state=make(kind)), [lambda w: setattr(w, "state", make(kind))])
    assert (done.recordings, done.replays) == (recordings, 2 * CALLS - recordings)


def test_a_branch_on_a_number_has_a_recording_each_way() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        if s.step == 3:
            w.state = replace(s, step=0, x=s.x * 0)
        else:
            w.state = replace(s, step=s.step + 1, x=s.x * 0.5 + x)
        return w.state.x * 2 - s.step

    done = beside_eager(program, lambda: World(state=one()), calls=14)
    assert done.recordings == 2 and done.replays >= 10


def test_a_record_in_a_global_and_in_a_closure() -> None:
    def make() -> Any:
        state = one()

        def step(x: Tensor) -> Tensor:
            nonlocal state
            state = grown(state, x)
            return state.x * 2 - state.step

        return step

    jitted, eager = jit(make()), make()
    for call in range(CALLS):
        assert_same(jitted(threes() + call), eager(threes() + call))
    assert jitted.statistics().replays == CALLS - 1


def test_the_record_from_before_is_kept_by_the_program() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.last, w.state = w.state, grown(w.state, x)
        return w.state.x * 2 - w.last.x * w.last.step

    mine = World(state=one(), last=one())
    jitted = jit(lambda x: program(mine, x))
    for call in range(CALLS):
        old = mine.state
        jitted(threes() + call)
        assert mine.last is old and mine.state is not old
    done = beside_eager(program, lambda: World(state=one(), last=one()))
    assert done.replays == CALLS - 1


def test_two_records_change_places() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.other, w.state = w.state, w.other
        return w.state.x * 2 - w.other.x * x * w.state.step

    mine = World(state=one(), other=replace(one(), step=5))
    first, second = mine.state, mine.other
    jitted = jit(lambda x: program(mine, x))
    for call in range(CALLS):
        jitted(threes() + call)
        assert (mine.state, mine.other) == ((second, first) if call % 2 == 0 else (first, second))
    beside_eager(program, lambda: World(state=one(), other=replace(one(), step=5)))


def test_the_record_that_was_there_is_returned_as_itself() -> None:
    def program(w: Any, x: Tensor) -> Any:
        s = w.state
        w.state = grown(s, x)
        return s, w.state

    mine = World(state=one())
    jitted = jit(lambda x: program(mine, x))
    for call in range(CALLS):
        old = mine.state
        before, after = jitted(threes() + call)
        assert before is old and after is mine.state and after is not before
    assert jitted.statistics().replays == CALLS - 1


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_through_a_record(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = (s.x * w.weight + x).tanh()
        w.state = replace(s, step=s.step + 1, x=y.detach())
        return (y * y).sum() * 2 - s.x.sum()

    def make() -> World:
        return World(weight=torch.full((3,), 0.5, requires_grad=True), state=kind(step=0, scale=1.0, x=threes()))

    mine, twin = make(), make()
    jitted = jit(lambda x: program(mine, x), on_refusal="eager")
    for call in range(CALLS):
        x = torch.arange(3.0) - call
        jitted(x).backward(), program(twin, x).backward()
        assert_same(mine.weight.grad, twin.weight.grad)
        assert_same(mine.state.x, twin.state.x)
        assert mine.state.step == twin.state.step


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_training_with_a_record(kind: Any) -> None:
    def make() -> World:
        weight = torch.full((3,), 0.5, requires_grad=True)
        return World(
            weight=weight, optimizer=torch.optim.SGD([weight], lr=0.1), state=kind(step=0, scale=1.0, x=threes())
        )

    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        w.optimizer.zero_grad()
        loss = ((s.x * w.weight + x) ** 2).sum() * s.scale
        loss.backward()
        w.optimizer.step()
        w.state = replace(s, step=s.step + 1, scale=s.scale * 0.9, x=s.x * 0.9 + w.weight.detach() - s.step)
        return loss.detach()

    mine, twin = make(), make()
    jitted = jit(lambda x: program(mine, x))
    for call in range(CALLS):
        x = torch.arange(3.0) - call
        assert_same(jitted(x), program(twin, x))
        assert_same(mine.weight, twin.weight)
        assert repr(mine.state) == repr(twin.state)
    assert jitted.statistics().replays >= CALLS - 2

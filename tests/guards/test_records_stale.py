"""Records that a program replaces in each call, where the program can tell which object one is, or where others replace, change
or keep it: what eager gives, or a refusal."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from support import assert_same, jit
from support.records import CALLS, Change, Program, World, beside_eager


@dataclass(frozen=True)
class Hashed:
    """Its hash is in Python, and that of its tensor goes by address."""

    step: int
    x: Tensor
    mode: str = "a"


@dataclass(frozen=True, eq=False)
class ByAddress:
    """Its hash is in C."""

    step: int
    x: Tensor
    mode: str = "a"


@dataclass
class Plain:
    step: int
    x: Tensor
    mode: str = "a"


@dataclass(slots=True)
class Slotted:
    step: int
    x: Tensor
    mode: str = "a"


@dataclass(eq=False, slots=True, weakref_slot=True)
class SlottedByAddress:
    step: int
    x: Tensor
    mode: str = "a"


KINDS: list[Any] = [Hashed, ByAddress, Plain, Slotted, SlottedByAddress]
HASHABLE: list[Any] = [ByAddress, SlottedByAddress]


def twos() -> Tensor:
    return torch.full((3,), 2.0)


def grown(s: Any, x: Tensor) -> Any:
    return replace(s, step=s.step + 1, x=s.x * 0.5 + x)


def world(kind: Any, **more: Any) -> World:
    return World(state=kind(0, twos()), **more)


# --- which object it is -----------------------------------------------------------------------------------------


def told_from_another(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if w.state is w.other else 3) - w.state.step
    w.state = grown(w.state, x)
    return y


def told_in_a_list(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if any(each is w.state for each in w.many) else 3) - w.state.step
    w.state = grown(w.state, x)
    return y


def told_in_a_tuple(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if w.pair[0] is w.state else 3) - w.state.step
    w.state = grown(w.state, x)
    return y


def told_by_default(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if w.is_it(w.state) else 3) - w.state.step
    w.state = grown(w.state, x)
    return y


def told_by_reference(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if w.reference() is w.state else 3) - w.state.step
    w.state = grown(w.state, x)
    return y


def put_other(w: Any) -> None:
    w.other = w.state


def take_other(w: Any) -> None:
    w.state = w.other


def apart(w: Any) -> None:
    w.state = replace(w.state)


def put_in_list(w: Any) -> None:
    w.many.append(w.state)


def in_list_instead(w: Any) -> None:
    w.many = [w.state]


def take_from_list(w: Any) -> None:
    w.state = w.many[0]


def put_in_tuple(w: Any) -> None:
    w.pair = (w.state, 1)


def take_from_tuple(w: Any) -> None:
    w.state = w.pair[0]


def as_default(w: Any) -> None:
    def is_it(s: Any, known: Any = w.state) -> bool:
        return s is known

    w.is_it = is_it


def take_default(w: Any) -> None:
    w.state = w.is_it.__defaults__[0]


def put_reference(w: Any) -> None:
    w.reference = weakref.ref(w.state)


def put_reference_to_another(w: Any) -> None:
    w.kept = replace(w.state)
    w.reference = weakref.ref(w.kept)


def take_kept(w: Any) -> None:
    w.state = w.kept


def known(kind: Any) -> Any:
    return kind(5, twos() + 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [[put_other, apart, take_other], [take_other, apart, put_other, take_other]])
def test_told_from_another(kind: Any, changes: list[Change]) -> None:
    beside_eager(told_from_another, lambda: world(kind, other=known(kind)), changes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [[put_in_list, take_from_list], [in_list_instead, apart, take_from_list]])
def test_told_in_a_list(kind: Any, changes: list[Change]) -> None:
    beside_eager(told_in_a_list, lambda: world(kind, many=[known(kind)]), [take_from_list, *changes])


@pytest.mark.parametrize("kind", KINDS)
def test_told_in_a_tuple(kind: Any) -> None:
    changes = [take_from_tuple, apart, put_in_tuple, apart, take_from_tuple]
    beside_eager(told_in_a_tuple, lambda: world(kind, pair=(known(kind), 1)), changes)


@pytest.mark.parametrize("kind", KINDS)
def test_told_by_a_default(kind: Any) -> None:
    def make() -> World:
        w = World(state=known(kind))
        as_default(w)
        w.state = kind(0, twos())
        return w

    beside_eager(told_by_default, make, [take_default, apart, as_default, take_default])


@pytest.mark.parametrize("kind", [Hashed, ByAddress, Plain, SlottedByAddress])
def test_told_by_a_weak_reference(kind: Any) -> None:
    def make() -> World:
        w = world(kind)
        put_reference_to_another(w)
        return w

    beside_eager(told_by_reference, make, [take_kept, apart, put_reference, put_reference_to_another, take_kept])


@pytest.mark.parametrize("kind", KINDS)
def test_told_by_its_address(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        y = w.state.x * (2 if id(w.state) == w.address else 3) - w.state.step
        w.state = grown(w.state, x)
        return y

    def note(w: Any) -> None:
        w.kept.append(w.state)  # or another one may be where it was
        w.address = id(w.state)

    mine, twin = world(kind, address=0, kept=[]), world(kind, address=0, kept=[])
    jitted = jit(lambda x: program(mine, x), on_refusal="eager")
    for call in range(12):
        if call % 4 == 3:
            note(mine), note(twin)
        assert_same(jitted(twos() + call), program(twin, twos() + call))


@pytest.mark.parametrize("kind", HASHABLE)
def test_told_by_a_set_and_as_a_key(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        y = w.state.x * (2 if w.state in w.many else 3) - w.table.get(w.state, 7) * w.state.step
        w.state = grown(w.state, x)
        return y

    def put(w: Any) -> None:
        w.many.add(w.state)
        w.table[w.state] = 1
        w.kept = w.state

    def make() -> World:
        kept = known(kind)
        return world(kind, many={kept}, table={kept: 4}, kept=kept)

    beside_eager(program, make, [take_kept, put, apart, take_kept])


@pytest.mark.parametrize("kind", [Hashed, *HASHABLE])
@pytest.mark.parametrize("is_limited", [True, False])
def test_told_by_a_cache(kind: Any, is_limited: bool) -> None:
    def make() -> World:
        w = world(kind)

        @functools.lru_cache(maxsize=8 if is_limited else None)
        def asked(s: Any) -> float:
            return w.bias * 2 - s.step

        w.bias, w.asked = 1.0, asked
        return w

    def program(w: Any, x: Tensor) -> Tensor:
        y = w.state.x * w.asked(w.state) - 1
        w.state = grown(w.state, x)
        return y

    def fill(w: Any) -> None:
        w.bias = 3.0
        w.asked(w.state)
        w.bias = 5.0

    beside_eager(program, make, [fill, apart, fill, fill])


@pytest.mark.parametrize("kind", HASHABLE)
def test_told_by_a_cache_that_has_it_already(kind: Any) -> None:
    @functools.lru_cache
    def asked(s: Any) -> list[int]:
        return [len(calls)]

    calls: list[int] = []
    mine = world(kind)

    def program(x: Tensor) -> Tensor:
        y = mine.state.x * asked(mine.state)[0] - 1
        mine.state = grown(mine.state, x)
        return y

    jitted = jit(program, on_refusal="eager")
    for call in range(8):
        calls.append(call)
        if call in (0, 1, 4):
            asked(mine.state)
        before = mine.state
        expected = before.x * asked(before)[0] - 1 if call in (0, 1, 4) else before.x * len(calls) - 1
        assert_same(jitted(twos() + call), expected)


# --- in two places ----------------------------------------------------------------------------------------------


def both(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if w.state is w.other else 3) - w.other.x * w.other.step
    w.state, w.other = grown(w.state, x), grown(w.other, x - 1)
    return y


def one_for_both(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if w.state is w.other else 3) - w.other.x * w.other.step
    w.state = w.other = grown(w.state, x)
    return y


def previous(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * (2 if w.state is w.other else 3) - w.other.x * w.other.step
    w.other = w.state
    w.state = grown(w.state, x)
    return y


def chained(w: Any, x: Tensor) -> Tensor:
    y = w.state.x * w.other["s"].step - w.other["s"].x
    w.other = {"s": w.state, "n": w.other["n"] + 1}
    w.state = grown(w.state, x)
    return y


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [both, one_for_both, previous])
@pytest.mark.parametrize("changes", [[put_other, apart], [take_other], [apart, put_other, take_other, apart]])
def test_in_two_places(kind: Any, program: Program, changes: list[Change]) -> None:
    beside_eager(program, lambda: world(kind, other=known(kind)), changes)


@pytest.mark.parametrize("kind", KINDS)
def test_kept_in_a_dictionary_that_is_replaced_too(kind: Any) -> None:
    def share(w: Any) -> None:
        w.other = {"s": w.state, "n": 3}

    beside_eager(chained, lambda: world(kind, other={"s": known(kind), "n": 0}), [share, apart])


@dataclass(frozen=True)
class Outer:
    a: Any
    b: Any
    n: int


@pytest.mark.parametrize("kind", KINDS)
def test_two_fields_with_one_record(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = s.a.x * (2 if s.a is s.b else 3) - s.b.x * s.b.step
        w.state = Outer(grown(s.a, x), grown(s.b, x - 1), s.n + 1)
        return y

    def share(w: Any) -> None:
        w.state = replace(w.state, b=w.state.a)

    def share_tensor(w: Any) -> None:
        w.state = replace(w.state, b=replace(w.state.b, x=w.state.a.x))

    def make() -> World:
        return World(state=Outer(known(kind), kind(0, twos()), 0))

    beside_eager(program, make, [share, share_tensor, share])


@pytest.mark.parametrize("kind", KINDS)
def test_found_first_in_a_place_that_stays(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        y = w.state.x * 2 - w.state.step
        w.state = grown(w.state, x)
        return y

    def make() -> World:
        first = known(kind)
        return World(alias=first, state=first)  # of which the program does not read the one that comes first

    beside_eager(program, make, [lambda w: setattr(w, "state", w.alias)])


@pytest.mark.parametrize("kind", KINDS)
def test_found_first_in_a_list_that_stays(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        y = w.state[0].x * 2 - w.state[0].step
        w.state = [grown(w.state[0], x)]
        return y

    def make() -> World:
        first = [known(kind)]
        return World(alias=first, state=first)

    beside_eager(program, make, [lambda w: setattr(w, "state", w.alias)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_in_a_tuple_that_is_found_first_elsewhere(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        (inner,) = w.state
        y = inner[0].x * 2 - inner[0].step
        w.state = ([grown(inner[0], x)],)
        return y

    def make() -> World:
        first = [known(kind)]
        return World(alias=first, state=(first,))

    beside_eager(program, make, [lambda w: setattr(w, "state", (w.alias,))])


# --- what others do between two calls -----------------------------------------------------------------------------


@dataclass(frozen=True)
class HeirOfHashed(Hashed):
    def scaled(self) -> Tensor:
        return self.x * 7


def other_class(w: Any) -> None:
    kind = type(w.state)
    w.state = (Plain if kind is not Plain else Hashed)(w.state.step, w.state.x, w.state.mode)


def other_mode(w: Any) -> None:
    w.state = replace(w.state, mode="b")


def other_shape(w: Any) -> None:
    w.state = replace(w.state, x=torch.full((1,), 4.0))


def other_dtype(w: Any) -> None:
    w.state = replace(w.state, x=w.state.x.double())


def a_bool(w: Any) -> None:
    w.state = replace(w.state, step=True)


def a_float(w: Any) -> None:
    w.state = replace(w.state, step=2.5)


def a_number_for_a_tensor(w: Any) -> None:
    w.state = replace(w.state, x=2.0)


def gone(w: Any) -> None:
    w.state = None


def more(w: Any) -> None:
    w.state = replace(w.state)
    if hasattr(w.state, "__dict__"):
        w.state.__dict__["extra"] = 5


def less(w: Any) -> None:
    w.state = replace(w.state)
    object.__delattr__(w.state, "mode")


def shares_a_tensor(w: Any) -> None:
    w.state = replace(w.state, x=w.weight)


def changed_in_place(w: Any) -> None:
    object.__setattr__(w.state, "mode", "c")


def one_kept_and_changed(w: Any) -> None:
    old = w.state
    w.state = replace(old)
    for each in (old, w.state):
        object.__setattr__(each, "mode", "b")


def of_its_mode(w: Any, x: Tensor) -> Tensor:
    s = w.state
    y = s.x * (2 if getattr(s, "mode", "-") == "a" else 3) - s.step * w.weight + getattr(s, "extra", 1)
    w.state = type(s)(s.step + 1, s.x * 0.5 + x, getattr(s, "mode", "-"))
    return y


OTHERS: list[Change] = [
    other_class,
    other_mode,
    other_shape,
    other_dtype,
    a_bool,
    a_float,
    a_number_for_a_tensor,
    more,
    less,
    shares_a_tensor,
    changed_in_place,
    one_kept_and_changed,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", OTHERS)
def test_another_record_is_put_there(kind: Any, change: Change) -> None:
    def back(w: Any) -> None:
        w.state = kind(3, twos())

    beside_eager(of_its_mode, lambda: world(kind, weight=twos() - 5), [change, back, change])


def test_a_record_of_a_derived_class() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = (s.scaled() if isinstance(s, HeirOfHashed) else s.x * 2) - s.step
        w.state = grown(s, x)
        return y

    def heir(w: Any) -> None:
        w.state = HeirOfHashed(w.state.step, w.state.x)

    beside_eager(program, lambda: world(Hashed), [heir, lambda w: setattr(w, "state", Hashed(1, twos()))])


@pytest.mark.parametrize("kind", [Hashed, ByAddress, Plain])
def test_those_that_were_compared_are_changed_later(kind: Any) -> None:
    """Also what a later call was compared with is not what was recorded."""
    mine, twin = world(kind, config={"k": 1.5}), world(kind, config={"k": 1.5})

    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = s.x * (2 if s.mode == "a" else 3) - w.config["k"]
        w.state = grown(s, x)
        return y

    jitted, kept = jit(lambda x: program(mine, x), on_refusal="eager"), []
    for call in range(12):
        for w in (mine, twin):
            if call in (3, 6):
                w.config = {"k": 1.5}
            kept.append(w.state)
            if call in (5, 8):
                for each in kept:
                    object.__setattr__(each, "mode", "b" if call == 5 else "a")
        assert_same(jitted(twos() + call), program(twin, twos() + call))


def test_the_record_is_gone_for_a_while() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        w.state = Hashed(0, x * 1) if s is None else grown(s, x)
        return w.state.x * 2 - w.state.step

    beside_eager(program, lambda: world(Hashed), [gone, apart, gone])


# --- classes ------------------------------------------------------------------------------------------------------


@dataclass
class Counts:
    step: int
    x: Tensor
    made: ClassVar[int] = 0
    gain: ClassVar[float] = 2.0

    def __post_init__(self) -> None:
        type(self).made += 1


@dataclass
class Answers:
    step: int
    x: Tensor

    def __getattr__(self, name: str) -> Any:
        if name == "scale":
            return 2.0
        raise AttributeError(name)


@dataclass
class Asked:
    step: int
    x: Tensor

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        return found * 2 if name == "step" else found


@dataclass
class Cached:
    step: int
    x: Tensor

    @functools.cached_property
    def scale(self) -> float:
        return self.step * 2.0 + 1


@dataclass
class Compared:
    step: int
    x: Tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compared) and self.step == other.step


@dataclass
class Dies:
    step: int
    x: Tensor
    dead: ClassVar[list[int]] = []

    def __del__(self) -> None:
        Dies.dead.append(self.step)


@dataclass
class Listed:
    step: int
    x: Tensor
    names: list[str] = field(default_factory=lambda: ["a"])


def of_its_scale(w: Any, x: Tensor) -> Tensor:
    s = w.state
    y = s.x * s.scale - s.step
    w.state = type(s)(s.step + 1, s.x * 0.5 + x)
    return y


def of_its_step(w: Any, x: Tensor) -> Tensor:
    s = w.state
    y = s.x * 2 - s.step
    w.state = type(s)(s.step + 1, s.x * 0.5 + x)
    return y


def test_a_constructor_that_counts() -> None:
    counts = []
    for run in (jit, lambda program, **_: program):
        Counts.made = 0
        w = World(state=Counts(0, twos()))
        step = run(lambda x, w=w: of_its_step(w, x), on_refusal="eager")
        for call in range(8):
            step(twos() + call)
        counts.append((Counts.made, w.state.step, w.state.x.sum().item()))
    assert counts[0] == counts[1]


def test_data_of_the_class_changes() -> None:
    mine, twin = World(state=Counts(0, twos())), World(state=Counts(0, twos()))

    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = s.x * s.gain - s.step
        w.state = replace(s, step=s.step + 1, x=s.x * 0.5 + x)
        return y

    jitted = jit(lambda x: program(mine, x), on_refusal="eager")
    try:
        for call in range(12):
            Counts.gain = (2.0, 3.0, 5.0)[call // 4]
            assert_same(jitted(twos() + call), program(twin, twos() + call))
    finally:
        Counts.gain = 2.0


@pytest.mark.parametrize(
    ("kind", "program"),
    [
        (Answers, of_its_scale),
        (Asked, of_its_step),
        (Cached, of_its_scale),
        (Compared, of_its_step),
        (Listed, of_its_step),
    ],
)
def test_methods_of_the_class(kind: Any, program: Program) -> None:
    beside_eager(program, lambda: World(state=kind(0, twos())), [lambda w: setattr(w, "state", kind(3, twos() - 1))])


def test_the_class_gets_other_methods() -> None:
    @dataclass
    class Grows:
        step: int
        x: Tensor

        def scaled(self) -> Tensor:
            return self.x * 2

    mine, twin = World(state=Grows(0, twos())), World(state=Grows(0, twos()))

    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = s.scaled() - s.step
        w.state = grown(s, x)
        return y

    jitted = jit(lambda x: program(mine, x), on_refusal="eager")
    changes: dict[int, Callable[[], None]] = {
        4: lambda: setattr(Grows, "scaled", lambda self: self.x * 5),
        7: lambda: setattr(Grows, "__getattribute__", lambda self, name: object.__getattribute__(self, name)),
        10: lambda: setattr(Grows, "step", property(lambda self: 4)),
    }
    for call in range(10):
        changes.get(call, lambda: None)()
        assert_same(jitted(twos() + call), program(twin, twos() + call))


def test_what_dies_with_a_record() -> None:
    Dies.dead.clear()
    w = World(state=Dies(0, twos()))
    jitted = jit(lambda x: of_its_step(w, x), on_refusal="eager")
    for call in range(6):
        jitted(twos() + call)
        assert call in Dies.dead


def test_what_is_put_into_a_list_of_a_record() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = s.x * len(s.names) - s.step
        w.state = replace(s, step=s.step + 1, x=s.x * 0.5 + x)
        return y

    def another(w: Any) -> None:
        w.state = replace(w.state, names=["a"])

    def appended(w: Any) -> None:
        w.state.names.append("b")

    def shared(w: Any) -> None:
        w.names = w.state.names = ["c"]

    beside_eager(program, lambda: World(state=Listed(0, twos())), [another, appended, another, shared, appended])


def test_the_list_in_a_record_is_the_one_that_is_there() -> None:
    mine = World(state=Listed(0, twos()))

    def program(x: Tensor) -> Tensor:
        s = mine.state
        mine.state = replace(s, step=s.step + 1, x=s.x * 0.5 + x)
        return mine.state.x * 2

    jitted = jit(program)
    for call in range(8):
        if call == 4:
            mine.state = Listed(3, twos())
        names = mine.state.names
        jitted(twos() + call)
        assert mine.state.names is names
    assert jitted.statistics().replays >= 6


def test_changed_and_replaced_in_one_call() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.state.step += 1
        y = w.state.x * 2 - w.state.step
        w.state = replace(w.state, x=w.state.x * 0.5 + x)
        return y

    beside_eager(program, lambda: world(Plain))


def test_changed_only_in_some_calls() -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        if w.state.step % 3 == 2:
            w.state.step += 2
        else:
            w.state = grown(w.state, x)
        return w.state.x * 2 - w.state.step

    beside_eager(program, lambda: world(Plain), calls=16)


# --- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_may_be_the_record(kind: Any) -> None:
    def program(w: Any, given: Any, x: Tensor) -> Tensor:
        y = w.state.x * (2 if given is w.state else 3) - given.x * w.state.step
        w.state = grown(w.state, x)
        return y

    mine, twin = world(kind), world(kind)
    jitted = jit(lambda given, x: program(mine, given, x), on_refusal="eager")
    for call in range(16):
        x = twos() + call
        is_own = call % 8 in (3, 4, 5)
        found = jitted(mine.state if is_own else kind(1, twos()), x)
        assert_same(found, program(twin, twin.state if is_own else kind(1, twos()), x))


@dataclass
class Numbers:
    n: int
    m: float


def test_an_argument_may_be_the_record_where_no_tensor_tells() -> None:
    def program(w: Any, given: Any, x: Tensor) -> Tensor:
        y = x * (2 if given is w.state else 3) - w.state.n - given.m
        w.state = Numbers(w.state.n + 1, w.state.m * 0.5)
        return y

    mine, twin = World(state=Numbers(0, 1.0)), World(state=Numbers(0, 1.0))
    jitted = jit(lambda given, x: program(mine, given, x), on_refusal="eager")
    for call in range(12):
        for w in (mine, twin):
            w.state = Numbers(3, 1.0)
        x, is_own = twos() + call, call in (5, 6, 9)
        found = jitted(mine.state if is_own else Numbers(3, 1.0), x)
        assert_same(found, program(twin, twin.state if is_own else Numbers(3, 1.0), x))


@pytest.mark.parametrize("kind", KINDS)
def test_an_argument_that_is_stored(kind: Any) -> None:
    mine = world(kind)

    def program(given: Any, x: Tensor) -> Tensor:
        y = mine.state.x * 2 - given.x
        mine.state = given
        return y

    jitted = jit(program, on_refusal="eager")
    for call in range(CALLS):
        given, before = kind(1, twos() + call), mine.state
        assert_same(jitted(given, twos()), before.x * 2 - given.x)
        assert mine.state is given


# --- trained ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_gradient_that_is_asked_of_a_tensor_in_a_record(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = x * (2 if s.x.requires_grad else 3) - s.step
        w.state = replace(s, step=s.step + 1)
        return y

    def wants(w: Any) -> None:
        w.state = replace(w.state, x=twos().requires_grad_())

    def attributed(w: Any) -> None:
        w.state = replace(w.state, x=twos())
        w.state.x.mark = 3

    beside_eager(program, lambda: world(kind), [wants, attributed, lambda w: setattr(w, "state", kind(1, twos()))])


@pytest.mark.parametrize("kind", KINDS)
def test_a_mark_on_a_tensor_in_a_record(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = s.x * getattr(s.x, "mark", 2) - s.step
        w.state = grown(s, x)
        return y

    def marked(w: Any) -> None:
        w.state = replace(w.state, x=twos())
        w.state.x.mark = 3

    beside_eager(program, lambda: world(kind), [marked, apart, marked])


class Meta:
    """An object of which the program reads nothing."""


@dataclass
class Carries:
    x: Tensor
    meta: Any
    pair: Any


def carried(w: Any, x: Tensor) -> Tensor:
    s = w.state
    w.state = Carries(s.x * 0.5 + x, s.meta, s.pair)
    return s.x * 2 - 1


def carried_in_tuple(w: Any, x: Tensor) -> Tensor:
    y, meta, pair = w.state
    w.state = (y * 0.5 + x, meta, pair)
    return y * 2 - 1


@pytest.mark.parametrize("program", [carried, carried_in_tuple])
def test_an_object_that_is_carried_on_is_the_one_that_is_there(program: Program) -> None:
    def put() -> list[Any]:
        meta, pair = Meta(), (Meta(), 1)
        mine.state = Carries(twos(), meta, pair) if program is carried else (twos(), meta, pair)
        return [meta, pair[0]]

    mine = World()
    objects = put()
    jitted = jit(lambda x: program(mine, x))
    for call in range(10):
        objects = put() if call in (4, 7) else objects
        jitted(twos() * call)
        _, meta, pair = vars(mine.state).values() if program is carried else mine.state
        assert meta is objects[0] and pair[0] is objects[1]
    assert jitted.statistics().replays >= 6


@pytest.mark.parametrize("kind", [list, dict])
def test_lists_of_later_calls_that_are_changed_and_shared(kind: Any) -> None:
    """Also what is no record is compared with what was there when it was recorded, and with what else is there."""

    def make() -> World:
        return World(state=kind(zip("xm", (twos(), "a"), strict=True)), other=["a"], config={"k": 1.5})

    def program(w: Any, x: Tensor) -> Tensor:
        s = dict(w.state)
        y = s["x"] * (2 if s["m"] == "a" else 3) * (5 if w.other is w.first else 7) - w.config["k"]
        w.state = kind(zip("xm", (s["x"] * 0.5 + x, s["m"]), strict=True))
        w.other, w.first = [*w.other], [*w.first]
        return y

    mine, twin = make(), make()
    mine.first, twin.first = ["a"], ["a"]
    jitted, kept = jit(lambda x: program(mine, x), on_refusal="eager"), []
    for call in range(14):
        for w in (mine, twin):
            if call in (3, 6):
                w.config = {"k": 1.5}
            if call in (9, 10, 12):
                w.other = w.first
            kept.append(w.state)
            for each in kept if call in (5, 8) else ():
                entry = ("m", "b") if kind is list else "b"
                each[1 if kind is list else "m"] = entry
        assert_same(jitted(twos() + call), program(twin, twos() + call))


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_tensors_whose_results_the_caller_differentiates(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        s = w.state
        y = (s.x * w.weight + x).tanh()
        w.state = replace(s, x=y.detach() - 1)
        return (y * y).sum() * 2 - s.x.sum()

    def make() -> World:
        return World(weight=torch.full((3,), 0.5, requires_grad=True), state=kind(2, twos()))

    mine, twin = make(), make()
    jitted = jit(lambda x: program(mine, x), lower="aten")
    for call in range(8):
        x = torch.arange(3.0) - call
        if call == 5:
            mine.state, twin.state = kind(2, twos() * 3), kind(2, twos() * 3)
        jitted(x).backward(), program(twin, x).backward()
        assert_same(mine.weight.grad, twin.weight.grad)
        assert_same(mine.state.x, twin.state.x)
    assert jitted.statistics().replays >= 5

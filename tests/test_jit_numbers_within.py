"""Numbers within containers that a program puts anew into its state: those that vary are inputs, and each replay builds the
container with what it computes. What else is in it is guarded."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from support import assert_same, jit

CALLS = 10


class State(NamedTuple):
    x: Tensor
    t: float


class Pair(NamedTuple):
    a: int
    b: int


class Holder:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


Program = Callable[[Any, Tensor], Any]
Change = Callable[[Any], None]


def twos() -> Tensor:
    return torch.full((3,), 2.0)


def beside_eager(program: Program, holder: Any, changes: Sequence[Change] = (), **options: Any) -> Any:
    """The jitted program after some calls, and some more after each change, beside an eager twin: results and state are the
    same, with their types."""
    mine, twin = holder, copy.deepcopy(holder)
    jitted = jit(lambda x: program(mine, x), **{"on_refusal": "eager", **options})
    for change in (lambda _: None, *changes):
        change(mine), change(twin)
        for call in range(CALLS):
            x = torch.arange(3.0) + call
            assert_same(jitted(x), program(twin, x))
            assert_same(vars(mine), vars(twin))
            assert repr(vars(mine)) == repr(vars(twin))
    return jitted.statistics()


def put(name: str, make: Callable[[], Any]) -> Change:
    return lambda holder: setattr(holder, name, make())


def named(s: Any, x: Tensor) -> Tensor:
    p = s.p
    s.p = State(p.x * 0.9 + p.t * x, p.t + 0.1)
    return s.p.x - 1


def replaced(s: Any, x: Tensor) -> Tensor:
    p = s.p
    s.p = p._replace(x=p.x * 0.9 + x, t=p.t + 0.1)
    return s.p.x - 1


def plain(s: Any, x: Tensor) -> Tensor:
    y, t = s.p
    s.p = (y * 0.9 + t * x, t + 1)
    return s.p[0] - 1


def nested(s: Any, x: Tensor) -> Tensor:
    (y, (z, n)) = s.p
    s.p = (y + x, (z * 0.5 + n, n + 1))
    return s.p[0] * 2 - s.p[1][0]


def in_dict(s: Any, x: Tensor) -> Tensor:
    p = s.p
    s.p = {"x": p["x"] * 0.9 + p["t"] * x, "t": p["t"] + 0.1}
    return s.p["x"] - 1


def in_list(s: Any, x: Tensor) -> Tensor:
    p = s.p
    s.p = [p[0] * 0.9 + p[1] * x, p[1] + 0.1]
    return s.p[0] - 1


def within_both(s: Any, x: Tensor) -> Tensor:
    y, d = s.p
    s.p = (y * 0.5 + d["n"] * x, {"n": d["n"] + 1})
    return s.p[0] - 1


def pairs_in_list(s: Any, x: Tensor) -> Tensor:
    s.p = [(y * 0.5 + n * x, n + 1) for y, n in s.p]
    return sum(y - n for y, n in s.p)


def numbers_alone(s: Any, x: Tensor) -> Tensor:
    a, b = s.p
    s.p = Pair(b, a + 1)
    return x * a - b


def branching(s: Any, x: Tensor) -> Tensor:
    y, n = s.p
    s.p = (y * 0, 0) if n == 3 else (y + x, n + 1)
    return s.p[0] * 2 - 1


PROGRAMS: dict[str, tuple[Program, Callable[[], Any], int]] = {
    "named tuple": (named, lambda: State(twos(), 0.0), 1),
    "replaced": (replaced, lambda: State(twos(), 0.0), 1),
    "tuple": (plain, lambda: (twos(), 1), 1),
    "nested": (nested, lambda: (twos(), (twos(), 1)), 1),
    "dict": (in_dict, lambda: {"x": twos(), "t": 0.0}, 1),
    "list": (in_list, lambda: [twos(), 0.0], 1),
    "dict in a tuple": (within_both, lambda: (twos(), {"n": 1}), 1),
    "tuples in a list": (pairs_in_list, lambda: [(twos(), 1), (twos() - 1, 5)], 1),
    "numbers alone": (numbers_alone, lambda: Pair(1, 3), 1),
    "a branch": (branching, lambda: (twos(), 0), 2),
}


@pytest.mark.parametrize(("program", "make", "recordings"), PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("kind", [Holder, types.SimpleNamespace])
def test_a_container_with_a_number_is_replaced_in_each_call(
    kind: Any, program: Program, make: Callable[[], Any], recordings: int
) -> None:
    made = beside_eager(program, kind(p=make()), [put("p", make)])
    assert (made.recordings, made.replays) == (recordings, 2 * CALLS - recordings)


def as_dict(s: Any) -> Any:
    return {"n": s.n, "lr": 0.1 * 0.9**s.n, "mean": s.x.mean()}


def as_pairs(s: Any) -> Any:
    return {"pair": (s.n, s.n * 2), "list": [s.n - 0.5]}


@pytest.mark.parametrize("kind", [Holder, types.SimpleNamespace])
@pytest.mark.parametrize(
    "make",
    [
        as_dict,
        as_pairs,
        lambda s: {"n": s.n},
        lambda s: (s.n, s.x.mean()),
        lambda s: [s.n, s.x * s.n],
        lambda s: (s.n,),
    ],
)
def test_a_number_that_is_counted_goes_into_a_container_made_anew(kind: Any, make: Callable[[Any], Any]) -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        s.n += 1
        s.x = s.x * 0.5 + x
        s.info = make(s)
        return s.x - len(s.info)

    made = beside_eager(program, kind(n=0, x=twos(), info={}))
    assert made.recordings == 1 and made.replays >= CALLS - 2


def test_a_number_in_a_container_of_the_call_before_is_read() -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        old = s.info
        s.n += 1
        s.info = {"n": s.n * 2, "sum": x.sum()}
        return old["sum"] * old["n"] - x

    assert beside_eager(program, Holder(n=0, info={"n": 1, "sum": torch.ones(())})).recordings == 1


OTHERS: dict[str, Callable[[], Any]] = {
    "an integer": lambda: (twos(), 7),
    "a float": lambda: (twos(), 0.5),
    "a bool": lambda: (twos(), True),
    "another class": lambda: State(twos(), 3),
    "a list": lambda: [twos(), 3],
    "another shape": lambda: (torch.ones(1), 3),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=OTHERS)
def test_what_else_differs_in_a_tuple_is_noticed(make: Callable[[], Any]) -> None:
    beside_eager(plain, Holder(p=(twos(), 1)), [put("p", make)])


def test_a_dict_of_another_class_or_order_is_noticed() -> None:
    changes = [
        put("p", lambda: {"t": 2.0, "x": twos()}),
        put("p", lambda: OrderedDict(x=twos(), t=3.0)),
        put("p", lambda: {"x": twos(), "t": 3}),
    ]
    beside_eager(in_dict, Holder(p={"x": twos(), "t": 0.0}), changes)


def test_a_text_beside_a_number_is_guarded() -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        n, mode = s.p
        s.p = (n + 1, mode)
        return x * n - (2 if mode == "a" else 3)

    made = beside_eager(program, Holder(p=(1, "a")), [put("p", lambda: (1, "b")), put("p", lambda: (9, "a"))])
    assert made.recordings == 2


def test_a_named_tuple_that_is_set_between_calls() -> None:
    changes = [put("p", lambda n=n: Pair(n, 2)) for n in (3, 4, 5, 6)]
    made = beside_eager(lambda s, x: x * s.p.a - s.p.b, Holder(p=Pair(1, 2)), changes)
    assert made.recordings == 2


def test_the_program_that_stores_a_tuple_elsewhere_too_stores_the_one_that_is_there() -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        s.q = s.p
        s.is_same = s.q is s.p
        return x * s.p[0] - s.p[1]

    holder = Holder(p=(1.0, 2.0), q=None, is_same=None)
    beside_eager(program, holder, [put("p", lambda n=n: (n, 2.0)) for n in (3.0, 4.0, 5.0)])
    assert holder.q is holder.p


FIRST, SECOND = (1, 5), (2, 6)


def test_a_tuple_that_is_told_by_its_identity_is_no_place_of_inputs() -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        return x * (2 if s.p is FIRST else 3) - 1

    mine = Holder(p=FIRST)
    jitted = jit(lambda x: program(mine, x))
    for p in (FIRST, SECOND, FIRST, SECOND) * 3:
        mine.p = p
        assert_same(jitted(twos()), program(mine, twos()))


def test_two_places_that_share_a_tuple_are_followed_apart() -> None:
    def program(s: Any, x: Tensor) -> Tensor:
        s.p, s.q = s.q, s.p
        s.p = (s.p[0] + 1, s.p[1])
        return x * s.q[0] - s.p[0]

    def share(s: Any) -> None:
        s.p = s.q = (9.0, 2.0)

    beside_eager(program, Holder(p=(1.0, 2.0), q=(5.0, 2.0)), [share])


def test_a_number_in_a_tuple_that_is_an_index_is_told() -> None:
    holder = Holder(p=(twos(), 0))

    def program(x: Tensor) -> Tensor:
        y, n = holder.p
        holder.p = (y + x, (n + 1) % 3)
        return y[n] * 2 - 1

    jitted = jit(program, on_refusal="eager")
    for _ in range(CALLS):
        jitted(torch.arange(3.0))
    assert jitted.statistics().refusals == 1


def test_a_trace_puts_the_tuple_back_that_was_there() -> None:
    holder = Holder(p=(1.5, 2.5), fails=False)

    def program(x: Tensor) -> Tensor:
        a, b = holder.p
        holder.p = (a + 1, b)
        return x * a - b

    jitted = jit(program)
    for _ in range(3):
        jitted(twos())
    assert holder.p == (4.5, 2.5) and all(type(part) is float for part in holder.p)


def test_a_number_in_keyword_defaults_that_others_replace() -> None:
    def scaled(x: torch.Tensor, *, by: float = 3.0) -> torch.Tensor:
        return x * 2 - by

    function: Any = scaled

    def program(x: torch.Tensor) -> torch.Tensor:
        return scaled(x) * 3 - scaled(x, by=0.25)

    jitted, x = jit(program, on_refusal="eager"), torch.arange(3.0)
    for call, by in enumerate((3.0, 3.0, 0.0, 1.0, 0.0, 2.0, 5.0)):
        if call % 2:
            function.__kwdefaults__["by"] = by
        else:
            function.__kwdefaults__ = {"by": by}
        assert_same(jitted(x), program(x))

"""What may be in a slot that a replay fills: the like of what was recorded, and no container that the program writes into
elsewhere, though that took its place since."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import jit
from support.follows import Story, follows

Tensor = torch.Tensor


class Holder:
    def __init__(self, p: Any, q: Any) -> None:
        self.p, self.q = p, q


class Slotted:
    __slots__ = ("p", "q")
    __init__ = Holder.__init__


def in_dicts(o: Any, x: Tensor) -> Tensor:
    o.q["n"] += 2
    y = x * o.p["n"] - o.q["n"]
    o.p = {"n": o.p["n"] + 1}
    return y


def in_lists(o: Any, x: Tensor) -> Tensor:
    o.q[0] += 2
    y = x * o.p[0] - o.q[0]
    o.p = [o.p[0] + 1]
    return y


def of_tensors(o: Any, x: Tensor) -> Tensor:
    o.q["m"] = x * 3
    y = x * o.p["m"] - 1
    o.p = {"n": 3, "m": x * 2}
    return y


def below_a_tuple(o: Any, x: Tensor) -> Tensor:
    o.q["n"] += 2
    y = x * o.p[0]["n"] - o.q["n"]
    o.p = ({"n": o.p[0]["n"] + 1},)
    return y


def below_a_dict(o: Any, x: Tensor) -> Tensor:
    o.q["n"] += 2
    y = x * o.p["a"]["n"] - o.q["n"]
    o.p = {"a": {"n": o.p["a"]["n"] + 1}}
    return y


def _put(name: str, find: Callable[[Any], Any]) -> Callable[[Any], None]:
    return lambda o: setattr(o, name, find(o))


PROGRAMS: dict[str, tuple[Callable[[Any, Tensor], Tensor], Callable[[], Any], list[Callable[[Any], None]]]] = {
    "in dicts": (in_dicts, lambda: Holder({"n": 0}, {"n": 0}), [_put("q", lambda o: o.p)]),
    "in dicts, a new one first": (
        in_dicts,
        lambda: Holder({"n": 0}, {"n": 0}),
        [_put("q", lambda _: {"n": 7}), _put("p", lambda o: o.q)],
    ),
    "in lists": (in_lists, lambda: Holder([0], [0]), [_put("q", lambda o: o.p)]),
    "of tensors": (
        of_tensors,
        lambda: Holder({"n": 3, "m": torch.ones(3)}, {"n": 3, "m": torch.ones(3)}),
        [_put("q", lambda o: o.p)],
    ),
    "in slots": (in_dicts, lambda: Slotted({"n": 0}, {"n": 0}), [_put("q", lambda o: o.p)]),
    "in slots, a new one first": (
        in_dicts,
        lambda: Slotted({"n": 0}, {"n": 0}),
        [_put("q", lambda _: {"n": 7}), _put("p", lambda o: o.q)],
    ),
    "below a tuple": (below_a_tuple, lambda: Holder(({"n": 0},), {"n": 0}), [_put("q", lambda o: o.p[0])]),
    "put into a tuple": (below_a_tuple, lambda: Holder(({"n": 0},), {"n": 0}), [_put("p", lambda o: (o.q,))]),
    "below a dict": (below_a_dict, lambda: Holder({"a": {"n": 0}}, {"n": 0}), [_put("q", lambda o: o.p["a"])]),
    "put into a dict": (below_a_dict, lambda: Holder({"a": {"n": 0}}, {"n": 0}), [lambda o: o.p.update(a=o.q)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
@follows()
def test_a_container_that_the_program_writes_into_comes_into_a_slot_that_it_fills(name: str) -> Story:
    program, make, changes = PROGRAMS[name]
    o = make()
    yield lambda x: program(o, x), lambda: (o.p, o.q)
    for change in changes:
        change(o)
        yield


@follows(recordings=1)
def test_a_container_that_is_like_the_one_that_the_program_writes_into_takes_its_place() -> Story:
    o = Holder({"n": 0}, {"n": 0})
    yield lambda x: in_dicts(o, x), lambda: (o.p, o.q)
    o.q = {"n": 7}
    yield
    o.q, o.p = {"n": 8}, {"n": 9}
    yield


class Key:
    """It counts how often one is compared with another."""

    compared = 0

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        Key.compared += 1
        return isinstance(other, Key) and self.number == other.number


def test_the_way_to_a_number_is_found_by_its_key() -> None:
    keys = [Key(at) for at in range(20)]
    held = {key: key.number for key in keys}

    def program(x: Tensor) -> Tensor:
        nonlocal held
        held = {key: number + 1 for key, number in held.items()}
        return x * held[keys[3]] - 1

    step = jit(program)
    for _ in range(4):
        step(torch.ones(2))
    Key.compared = 0
    assert step(torch.ones(2)).tolist() == [7.0, 7.0]
    assert step.statistics().replays >= 2
    assert Key.compared == 0

"""Addresses and hashes of records that a program replaces in each call: by them it tells which object one is."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from support.records import World, beside_eager


@dataclass(eq=False)
class ByAddress:
    x: Tensor
    n: int


_HASH, _ID = hash, id

WAYS: dict[str, Callable[[Any], Any]] = {
    "hash": lambda s: hash(s),
    "its method": lambda s: s.__hash__(),
    "the method of object": lambda s: object.__hash__(s),
    "by a string": lambda s: getattr(object, "__hash__")(s),  # noqa: B009
    "hash of a tuple": lambda s: hash((s, 1)),
    "hash under another name": lambda s: _HASH(s),
    "map": lambda s: next(iter([*map(hash, [s])])),
    "text": lambda s: object.__repr__(s),
    "id under another name": lambda s: _ID(s),
    "id in its module": lambda s: builtins.id(s),
}


@pytest.mark.parametrize("told", WAYS.values(), ids=WAYS)
def test_a_record_that_the_caller_kept_is_told_from_others(told: Callable[[Any], Any]) -> None:
    kept: dict[int, Any] = {}

    def make() -> World:
        first = ByAddress(torch.ones(3), 0)
        w = World(seen={told(first)}, state=ByAddress(torch.ones(3), 0))
        kept[id(w)] = w, first
        return w

    def program(w: Any, x: Tensor) -> Tensor:
        y = w.state.x * (2 if told(w.state) in w.seen else 3) - w.state.n
        w.state = replace(w.state, x=w.state.x * 0.5 + x, n=w.state.n + 1)
        return y

    beside_eager(program, make, [lambda w: setattr(w, "state", kept[id(w)][1])])


def test_hashes_of_other_values_do_not_count() -> None:
    @dataclass
    class Plain:
        x: Tensor
        n: int

    def program(w: Any, x: Tensor) -> Tensor:
        y = w.state.x * (2 if hash(w.name) in w.seen else 3) - w.state.n
        w.state = replace(w.state, x=w.state.x * 0.5 + x, n=w.state.n + 1)
        return y

    done = beside_eager(program, lambda: World(seen={hash("a")}, name="a", state=Plain(torch.ones(3), 0)))
    assert (done.recordings, done.replays) == (1, 4)

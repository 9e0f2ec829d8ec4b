"""What is in a place that a program fills anew, and elsewhere too, or twice: it becomes others, or one, between calls."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from support.records import World, beside_eager


@dataclass
class Record:
    x: Tensor
    more: Any


class Pair(NamedTuple):
    x: Tensor
    more: Any


@dataclass
class Unread:
    a: int


class Plain(World):
    """No record."""

    def __repr__(self) -> str:
        return "Plain()"


def with_x(s: Any, x: Tensor) -> Any:
    return s._replace(x=x) if isinstance(s, Pair) else replace(s, x=x)


def of_its_own(w: Any) -> None:
    w.state = copy.deepcopy(w.state)


def holding(make: Callable[[Any], Any]) -> Callable[[Any], None]:
    """A change: `more` becomes what `make` gives."""

    def change(w: Any) -> None:
        w.state = type(w.state)(w.state.x, make(w))

    return change


KINDS: list[Any] = [Record, Pair]


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_that_the_owner_has_too_becomes_another_with_equal_contents(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.log[0] = w.log[0] * 2 + x
        w.state = with_x(w.state, w.state.x * 0.5 - x)
        return w.state.more[0] * 3 - w.state.x

    def make() -> World:
        log = [torch.zeros(3)]
        return World(log=log, state=kind(torch.ones(3), log))

    done = beside_eager(program, make, [of_its_own])
    assert done.replays >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_dict_that_the_owner_has_too_becomes_another_with_equal_contents(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.state = with_x(w.state, w.state.x * 0.5 - x)
        return w.state.x * (2 if w.state.more is w.log else 3)

    def make() -> World:
        log = {"k": 1.5}
        return World(log=log, state=kind(torch.ones(3), log))

    done = beside_eager(program, make, [of_its_own, holding(lambda w: w.log)])
    assert done.replays >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_list_becomes_one_that_stays_elsewhere(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.other.append(2)
        n = len(w.state.more)
        w.other.pop()
        w.state = with_x(w.state, w.state.x * 0.5 - x)
        return w.state.x * n - x

    done = beside_eager(program, lambda: World(other=[1], state=kind(torch.ones(3), [1])), [holding(lambda w: w.other)])
    assert done.replays >= 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "part", [lambda: [1], lambda: {"k": 1}, lambda: Unread(1), Plain], ids=["list", "dict", "record", "object"]
)
def test_a_part_becomes_the_very_object_elsewhere(kind: Any, part: Callable[[], Any]) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.state = with_x(w.state, w.state.x * 0.5 - x)
        return w.state.x * (2 if w.state.more is w.other else 3)

    def make() -> World:
        return World(other=part(), state=kind(torch.ones(3), part()))

    done = beside_eager(program, make, [holding(lambda w: w.other), holding(lambda w: part())])
    assert done.replays >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_an_unread_object_twice_becomes_two(kind: Any) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        a, b = w.state.more
        w.state = with_x(w.state, w.state.x * 0.5 - x)
        return w.state.x * (2 if a is b else 3)

    two, one = holding(lambda w: [Unread(1), Unread(1)]), holding(lambda w: [Unread(1)] * 2)
    done = beside_eager(program, lambda: World(state=kind(torch.ones(3), [Unread(1)] * 2)), [two, one])
    assert done.replays >= 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [Plain, lambda: Unread(1)], ids=["object", "record"])
def test_an_unread_object_in_a_list_becomes_one_that_stays_elsewhere(kind: Any, part: Callable[[], Any]) -> None:
    def program(w: Any, x: Tensor) -> Tensor:
        w.state = with_x(w.state, w.state.x * 0.5 - x)
        return w.state.x * (2 if w.state.more[0] is w.other else 3)

    def make() -> World:
        return World(other=part(), state=kind(torch.ones(3), [part()]))

    done = beside_eager(program, make, [holding(lambda w: [w.other]), holding(lambda w: [part()])])
    assert done.replays >= 4

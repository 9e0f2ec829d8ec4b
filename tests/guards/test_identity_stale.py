"""Which objects are one: containers and tensors that come to be one, or that are moved, and places that are not read."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support import jit

Tensor = torch.Tensor


class State:
    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


def same_list(it: State, x: Tensor) -> Tensor:
    it.a.append(1)
    count = len(it.b)
    it.a.pop()
    return x * (2 if it.a is it.b else 3) * count


def same_tensor(it: State, x: Tensor) -> Tensor:
    y = x * (2 if it.a is it.b else 3)
    it.a = x * 1
    return y


def strides(it: State, x: Tensor) -> Tensor:
    y = x * 2 if it.a.is_contiguous() else x * 3
    it.a = x * 1
    return y


def device(it: State, x: Tensor) -> Tensor:
    y = x * 2 if it.a.device.type == "cpu" else x * 3
    it.a = x * 1
    return y


def same_elements(it: State, x: Tensor) -> Tensor:
    y = x * 2 if it.a[0] is it.a[1] else x * 3
    it.a = [x * 1, x * 2]
    return y


def stored_and_taken_away(it: State, x: Tensor) -> Tensor:
    it.a = x
    y = it.a * 2
    del it.a
    return y


def returned(it: State, x: Tensor) -> Any:
    return x * 2, it.b


def zeros() -> Tensor:
    return torch.zeros(2, 2)


def put(**values: Callable[[State], Any]) -> Callable[[State], None]:
    def change(it: State) -> None:
        for name, value in values.items():
            setattr(it, name, value(it))

    return change


def shared() -> State:
    both = (None, [1])
    return State(a=both, b=both)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], State], Callable[[State], None]]] = {
    "two lists become one": (same_list, lambda: State(a=[1], b=[1]), put(a=lambda it: it.b)),
    "two tensors become one": (same_tensor, lambda: State(a=zeros(), b=zeros()), put(a=lambda it: it.b)),
    "other strides": (strides, lambda: State(a=zeros()), put(a=lambda _: zeros().t())),
    "another device": (device, lambda: State(a=zeros()), put(a=lambda _: zeros().to("meta"))),
    "two elements become one": (same_elements, lambda: State(a=[zeros(), zeros()]), put(a=lambda _: [zeros()] * 2)),
    "what was taken away is there": (stored_and_taken_away, State, put(a=lambda _: 1)),
    "a place of what is returned": (returned, shared, put(a=lambda _: None)),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_one_object_or_was_is_told_apart(name: str) -> None:
    program, make, change = CASES[name]
    mine, theirs = make(), make()
    call = jit(lambda x: program(mine, x))
    for at in range(8):
        if at in (4, 6):
            change(mine)
            change(theirs)
        x = torch.full((2, 2), at - 1.5)
        found, expected = call(x), program(theirs, x)
        if isinstance(found, tuple):
            assert found[1] is mine.b
            found, expected = found[0], expected[0]
        assert torch.equal(found, expected) and vars(mine).keys() == vars(theirs).keys(), at
    assert call.statistics().replays >= 3


def test_an_argument_that_was_stored_before_is_stored_again() -> None:
    entries: dict[str, Tensor] = {}
    call = jit(lambda x, z: (entries.update(k=z), x * 2 - 1)[1])
    same = torch.zeros(2)
    for at in range(7):
        z = same if at < 3 else torch.full((2,), float(at))
        call(torch.ones(2), z)
        assert entries["k"] is z
    assert call.statistics().replays >= 4


def test_containers_that_change_places_are_refused() -> None:
    mine, theirs = (State(front={"h": zeros()}, back={"h": zeros()}) for _ in range(2))
    held = [mine.front, mine.back]

    def program(it: State, x: Tensor) -> Tensor:
        it.front, it.back = it.back, it.front
        it.front["h"] = x
        return x * 2 - 1

    call = treeplay.jit(lambda x: program(mine, x), lower="aten")
    with pytest.warns(UserWarning, match="moves this container"):
        for at in range(5):
            x = torch.full((2, 2), float(at))
            assert torch.equal(call(x), program(theirs, x))
            assert mine.front["h"] is x and mine.front is held[(at + 1) % 2] and mine.back is held[at % 2]


def test_a_container_that_is_changed_and_let_go_is_refused() -> None:
    mine, theirs = (State(a=[zeros(), zeros()]) for _ in range(2))

    def program(it: State, x: Tensor) -> Tensor:
        if isinstance(it.a, list):
            it.a[0] = x
        it.a = x * 2
        return x - 1

    call = treeplay.jit(lambda x: program(mine, x), lower="aten")
    with pytest.warns(UserWarning, match="puts something else there too"):
        for at in range(9):
            if at % 3 == 0:
                old = mine.a = [zeros(), zeros()]
                theirs.a = [zeros(), zeros()]
            x = torch.full((2, 2), float(at))
            assert torch.equal(call(x), program(theirs, x)) and torch.equal(mine.a, theirs.a)
            assert at % 3 or old[0] is x


def test_a_number_may_meet_what_has_no_literal() -> None:
    mine, theirs = (State(n=1.0, best=math.inf, r=0.0) for _ in range(2))

    def program(it: State, x: Tensor) -> Tensor:
        it.n += 1.0
        it.r = it.n * math.inf - math.inf * 0.5
        it.best = min(it.best, it.n)
        return x * 2 - it.n

    call = jit(lambda x: program(mine, x))
    for _ in range(6):
        assert torch.equal(call(torch.ones(2)), program(theirs, torch.ones(2)))
        assert repr(vars(mine)) == repr(vars(theirs))
    assert call.statistics().replays >= 4

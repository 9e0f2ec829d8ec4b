"""Places that a program reads and writes: what was there before is guarded, in lists and slots as in dictionaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support import jit
from support.follows import Story, follows

Tensor = torch.Tensor


class Slotted:
    __slots__ = ("first", "is_warm", "second")

    def __init__(self) -> None:
        self.first = self.second = None
        self.is_warm = False


def history(held: list[Any], x: Tensor) -> Tensor:
    y = x * 2 - 1
    if held[1] is not None:
        y = y + 100
    held[1] = held[0]
    held[0] = y
    return y


def slots(held: Slotted, x: Tensor) -> Tensor:
    y = x * 2 - 1 if held.second is None else x * 2 - held.second
    held.second = held.first
    held.first = y
    return y


def warm(held: Slotted, x: Tensor) -> Tensor:
    y = x * 2 if held.is_warm else x - 1
    held.is_warm = True
    return y


def moved(held: list[Any], x: Tensor) -> Tensor:
    held[2] = held[1]
    held[1] = held[0]
    held[0] = x * 2 - 1
    return held[0]


def moved_entries(held: dict[str, Any], x: Tensor) -> Tensor:
    held["c"] = held["b"]
    held["b"] = held["a"]
    held["a"] = x * 2 - 1
    return held["a"]


def flag(held: list[Any], x: Tensor) -> Tensor:
    y = x * 2 if held[0] == "warm" else x - 1
    held[0] = "warm"
    return y


def alike(count: int) -> list[Tensor]:
    return [torch.zeros(())] * count


def content(held: Any) -> list[Any]:
    if isinstance(held, Slotted):
        return [held.first, held.second, held.is_warm]
    return list(held.values()) if isinstance(held, dict) else held


def clear(held: Any) -> None:
    if isinstance(held, Slotted):
        held.__init__()  # type: ignore[misc]
    else:
        held[:] = [None] * len(held)


CASES: dict[str, tuple[Callable[..., Tensor], Callable[[], Any], Callable[[Any], None]]] = {
    "a history": (history, lambda: [None, None], clear),
    "slots of an object": (slots, Slotted, clear),
    "a flag in a slot": (warm, Slotted, clear),
    "a flag in a list": (flag, lambda: [None], clear),
    "one tensor in three elements": (moved, lambda: alike(3), lambda held: held.__setitem__(slice(None), alike(3))),
    "one tensor in three entries": (
        moved_entries,
        lambda: dict.fromkeys("abc", torch.zeros(())),
        lambda held: held.update(dict.fromkeys("abc", torch.zeros(()))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_place_that_is_read_and_written_is_guarded(name: str) -> None:
    program, make, reset = CASES[name]
    mine, theirs = make(), make()
    step = jit(lambda x: program(mine, x))
    for at in range(24):
        if at % 8 == 7:
            reset(mine)
            reset(theirs)
        x = torch.tensor(float(at))
        assert torch.equal(step(x), program(theirs, x)), at
        assert repr(content(mine)) == repr(content(theirs)), at
    assert step.statistics().replays >= 8


class Plain:
    __slots__ = ("value",)


class Hiding(Plain):
    """A property under the name of the base class's slot; the content of that is reached through the base class alone."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        return super().value  # type: ignore[misc]


def _put(held: Any, value: Any) -> None:
    Plain.value.__set__(held, value)  # type: ignore[attr-defined]


@follows()
def test_a_slot_that_a_property_of_a_derived_class_hides_is_read() -> Story:
    held = Hiding()
    _put(held, 2.0)
    yield lambda x: x * held.value - 1, lambda: held.value
    _put(held, 3.0)
    yield


@follows()
def test_a_slot_that_a_property_of_a_derived_class_hides_is_written() -> Story:
    held = Hiding()
    _put(held, torch.ones(3))

    def program(x: Tensor) -> Tensor:
        y = x * 2 - held.value
        _put(held, y[0])
        return y

    yield program, lambda: held.value
    _put(held, torch.zeros(3))
    yield


def test_a_slot_that_a_property_hides_and_that_holds_nothing() -> None:
    held = Hiding()
    step = jit(lambda x: x * 2 - float(isinstance(held, Plain)))
    for at in range(4):
        x = torch.tensor([float(at)])
        assert torch.equal(step(x), x * 2 - 1)
    assert step.statistics().replays == 3


class Streaming(nn.Module):
    """Keeps the state of each layer in a list, which is begun anew for each sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([nn.GRUCell(3, 3) for _ in range(2)])
        self.reset()

    def reset(self) -> None:
        self.h: list[Tensor | None] = [None, None]

    def forward(self, x: Tensor) -> Tensor:
        for at, cell in enumerate(self.cells):
            x = self.h[at] = cell(x, self.h[at])
        return x


def test_states_in_a_list_that_are_reset_for_each_sequence() -> None:
    torch.manual_seed(3)
    mine, theirs = Streaming(), Streaming()
    theirs.load_state_dict(mine.state_dict())
    fast = jit(mine)
    with torch.no_grad():
        for sequence in range(4):
            mine.reset()
            theirs.reset()
            for at in range(5):
                x = torch.full((1, 3), sequence - at / 2)
                assert torch.equal(fast(x), theirs(x)), (sequence, at)
    assert fast.statistics().replays >= 12

"""An object that is given another dictionary of attributes: no dictionary tells of that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from support import Twins, jit
from treeplay.guards.check.words import background


class Holder:
    def __init__(self) -> None:
        self.scale = 2.0
        self.kept = torch.ones(3)


class OfDict(dict[str, Any]):
    pass


class OfTuple(tuple[int, ...]):
    pass


class Failure(Exception):
    pass


def of(cls: type) -> Any:
    made = cls()
    made.scale, made.kept = 2.0, torch.ones(3)
    return made


def reading(holder: Any):
    return lambda x: x * holder.scale - holder.kept


def storing(holder: Any):
    def step(x: torch.Tensor) -> torch.Tensor:
        holder.kept = x * 0.5 + 1
        return x * 2 - 1

    return step


def give_another(twins: Twins) -> None:
    for (holder,) in (twins.owners, twins.eager_owners):
        holder.__dict__ = {**holder.__dict__}


def change(twins: Twins) -> None:
    for (holder,) in (twins.owners, twins.eager_owners):
        holder.scale = 3.0
        holder.kept = holder.kept + 1


@pytest.mark.parametrize("make", [reading, storing])
@pytest.mark.parametrize("cls", [Holder, OfDict, OfTuple, Failure, nn.Module])
def test_what_is_changed_there_later_counts(cls: type, make: Any) -> None:
    twins = Twins(make, of(cls))
    for act in (None, give_another, change):
        if act is not None:
            act(twins)
        twins.calls(3, lambda: (torch.randn(3),))


@pytest.mark.parametrize("cls", [Holder, OfTuple, Failure])
def test_so_it_does_where_words_of_memory_are_compared(cls: type) -> None:
    background.compile()
    twins = Twins(reading, of(cls))
    twins.calls(60, lambda: (torch.randn(3),))
    give_another(twins)
    change(twins)
    twins.calls(3, lambda: (torch.randn(3),))


def test_an_object_that_has_the_same_dictionary_again_is_as_it_was() -> None:
    twins = Twins(reading, Holder())
    before = [vars(holder) for (holder,) in (twins.owners, twins.eager_owners)]
    twins.calls(3, lambda: (torch.randn(3),))
    give_another(twins)
    for (holder,), table in zip((twins.owners, twins.eager_owners), before, strict=True):
        holder.__dict__ = table
    twins.calls(3, lambda: (torch.randn(3),))
    assert twins.statistics.recordings == 1


def test_a_program_that_gives_an_object_another_dictionary_has_its_effects_once() -> None:
    def make(holder: Any):
        def step(x: torch.Tensor) -> torch.Tensor:
            holder.__dict__ = {**vars(holder), "scale": holder.scale + 1}
            return x * holder.scale - holder.kept

        return step

    twins = Twins(make, Holder())
    twins.step = jit(make(*twins.owners), on_refusal="eager")
    with pytest.warns(UserWarning, match="__dict__: the program changes"):
        twins.calls(4, lambda: (torch.randn(3),))


class Shown:
    """Its `__dict__` is made anew whenever it is asked for."""

    def __init__(self) -> None:
        object.__setattr__(self, "scale", 2.0)

    @property
    def __dict__(self) -> dict[str, Any]:
        return {"scale": self.scale}

    __slots__ = ("scale",)


def test_an_object_whose_dictionary_is_a_property_has_none_to_be_replaced() -> None:
    shown = Shown()
    program = jit(lambda x: x * shown.scale - 1)
    for _ in range(4):
        assert torch.equal(program(torch.ones(3)), torch.ones(3))
    assert program.statistics().replays == 3

"""A snapshot sees every change and puts it back."""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.survey.program import survey


class World:
    def __init__(self) -> None:
        self.items: list[Any] = [1, 2]
        self.table: dict[str, Any] = {"a": 1, "b": 2}
        self.queue = collections.deque([1, 2], maxlen=2)
        self.bag = {1, 2}
        self.space = SimpleNamespace(n=1)
        self.model = nn.Linear(1, 1)

    def run(self) -> None: ...


CHANGES: dict[str, tuple[Callable[[World], Any], str]] = {
    "an item": (lambda w: w.items.__setitem__(0, 9), "self.items[0]"),
    "a longer list": (lambda w: w.items.append(3), "self.items"),
    "an entry": (lambda w: w.table.update(a=9), "self.table.a"),
    "a new entry": (lambda w: w.table.update(c=9), "self.table.c"),
    "a removed entry": (lambda w: w.table.pop("a"), "self.table.a"),
    "a moved deque": (lambda w: w.queue.append(5), "self.queue[0]"),
    "a larger set": (lambda w: w.bag.add(5), "self.bag"),
    "an attribute": (lambda w: setattr(w.space, "n", 2), "self.space.n"),
    "a new attribute": (lambda w: setattr(w, "more", 2), "self.more"),
    "a gradient": (lambda w: setattr(w.model.weight, "grad", torch.ones(1, 1)), "self.model.weight.grad"),
    "a parameter": (lambda w: setattr(w.model, "bias", None), "self.model.bias"),
    "training": (lambda w: w.model.eval(), "self.model.training"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_seen_and_put_back(what: str) -> None:
    world = World()
    change, label = CHANGES[what]
    before = repr((world.items, world.table, world.queue, world.bag, world.space, vars(world.model)))
    snapshot = Snapshot(survey(world.run), [])
    assert not list(snapshot.changes())
    change(world)
    assert label in [str(found.place) for found in snapshot.changes()]
    for _ in range(2):  # safe to call more than once
        snapshot.restore()
    assert not list(snapshot.changes())
    assert repr((world.items, world.table, world.queue, world.bag, world.space, vars(world.model))) == before
    assert not hasattr(world, "more")


def test_the_order_of_a_dict_is_put_back() -> None:
    world = World()
    snapshot = Snapshot(survey(world.run), [])
    world.table["a"] = world.table.pop("a")
    snapshot.restore()
    assert list(world.table) == ["a", "b"]


def test_closure_variables_are_put_back_unassigned_ones_too() -> None:
    count = 1

    def bump() -> None:
        nonlocal count, later
        count, later = 2, 3

    if count == 0:
        later = 0
    snapshot = Snapshot(survey(bump), [])
    bump()
    assert [str(change.place) for change in snapshot.changes()] == ["count", "later"]
    snapshot.restore()
    assert count == 1
    with pytest.raises(NameError):
        later  # noqa: B018


def test_python_generators_and_the_grad_mode_are_put_back() -> None:
    snapshot = Snapshot(survey(lambda: None), [])
    assert snapshot.random_source_used() is None and not snapshot.grad_mode_changed()
    state = random.getstate()
    random.random()
    torch.set_grad_enabled(False)
    assert snapshot.random_source_used() == ("random", None) and snapshot.grad_mode_changed()
    snapshot.restore()
    assert random.getstate() == state and torch.is_grad_enabled()


def test_version_counters_are_put_back() -> None:
    tensor = torch.ones(2)
    version = tensor._version
    snapshot = Snapshot(survey(lambda: None), [tensor])
    tensor.add_(1)
    snapshot.restore()
    assert tensor._version == version


def test_it_knows_which_leaves_had_no_gradient() -> None:
    first, second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    second.grad = torch.ones(1)
    snapshot = Snapshot(survey(lambda: (first, second)), [])
    first.grad = torch.ones(1)
    assert snapshot.had_no_grad(first) and not snapshot.had_no_grad(second)
    assert not snapshot.had_no_grad(torch.ones(1))


class Registry(dict[Any, Any]):
    """A table whose methods want other arguments and keep other keys than a dict's."""

    def get(self, owner: Any) -> Any:  # type: ignore[override]
        return dict.get(self, str(type(owner)))

    def __setitem__(self, owner: Any, value: Any) -> None:
        dict.__setitem__(self, str(type(owner)), value)

    def _refuse(self, *_: Any) -> Any:
        raise AssertionError("a survey and a snapshot leave the user's methods alone")

    items = update = clear = copy = __contains__ = keys = _refuse  # type: ignore[assignment]


def test_a_dict_of_the_users_own_kind_is_taken_by_what_it_holds() -> None:
    world = World()
    world.table = table = Registry()
    table[0] = weight = torch.ones(1)
    found = survey(world.run)
    assert len(found.tensor_at(weight)) == 1
    snapshot = Snapshot(found, [])
    table[0] = torch.zeros(1)
    table["more"] = 3
    changes = list(snapshot.changes())
    assert len(changes) == 2 and changes[0].before is weight
    snapshot.restore()
    assert table.get(0) is weight and len(table) == 1


def test_other_containers_of_the_users_own_kinds_are_taken_by_what_they_hold() -> None:
    class Items(list[Any]):
        extend = clear = copy = Registry._refuse  # type: ignore[assignment]

    class Bag(set[Any]):
        update = clear = copy = Registry._refuse  # type: ignore[assignment]

    class Queue(collections.deque[Any]):
        extend = clear = copy = Registry._refuse  # type: ignore[assignment]

    world = World()
    world.items, world.bag, world.queue = Items([1, 2]), Bag({1, 2}), Queue([1, 2])
    snapshot = Snapshot(survey(world.run), [])
    world.items[0], _ = 9, world.bag.add(5)
    world.queue.append(5)
    assert len(list(snapshot.changes())) == 3
    snapshot.restore()
    assert (world.items, world.bag, list(world.queue)) == ([1, 2], {1, 2}, [1, 2])

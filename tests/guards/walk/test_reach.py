"""Reach: what a walk finds on the whole, and what it keeps."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import pytest
import torch

from support import training
from support.reached import Holder, findings, reached
from treeplay.guards.containers import Table
from treeplay.guards.walk import walk as module_of_walks
from treeplay.guards.walk.walk import TooMuch
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.values.flatten import flatten


def test_a_step_of_an_optimizer_reaches_little_of_torch() -> None:
    model = torch.nn.Linear(2, 2)
    step = training(model, torch.optim.Adam(model.parameters(), lr=0.1))
    args = torch.ones(1, 2), torch.ones(1, 2)
    for _ in range(2):
        step(*args)
    leaves, structure = flatten((args, {}))
    guards = trace(step, Call(args, {}, leaves, structure)).signature.guarded
    assert int(str(guards).partition(" dictionaries")[0]) < 500


@pytest.mark.parametrize("iterator", [iter([1.0]), itertools.count(), zip([1.0])])
def test_iterators_are_found(iterator: Any) -> None:
    found = findings(lambda i: None, iterator)
    assert [value is iterator for value, _ in found.iterators] == [True]


def test_too_many_objects_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_walks, "_MOST_OBJECTS", 100)
    many = [[float(k)] for k in range(200)]
    with pytest.raises(TooMuch):
        reached(lambda m: None, many)


def test_an_attribute_that_still_is_other_than_before_is_a_change() -> None:
    holder = Holder(a=1.0, b=2.0, c=3.0)

    def program(held: Any) -> None:
        held.a = held.a + 1
        held.b = 2.0
        held.new = held.c

    found = findings(program, holder)
    assert [(name, str(before)) for _, name, before in found.changed] == [("a", "1.0"), ("new", "nothing")]


def test_nothing_is_kept_of_the_run() -> None:
    made: list[Any] = []

    def program() -> float:
        made.append(weakref.ref(holder := Holder(a=1.0)))
        return float(holder.a)

    reach = reached(program)
    gc.collect()
    assert made[0]() is None and any(isinstance(table, Table) for table in reach.tables)

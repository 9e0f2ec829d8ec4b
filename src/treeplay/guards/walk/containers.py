"""Containers on a walk: all of a container counts, since Python does not tell which of its items a run read.

Dictionaries, lists, deques and sets get a guard each, and their items are followed. Tuples and frozen sets cannot change, so
that only their items are. A namespace is none of these: it is entered by name (`namespaces`).
"""

from __future__ import annotations

import collections
import gc
import sys
import types
from typing import Any

import torch

from treeplay.guards.conditions import Asked
from treeplay.guards.containers import Items, Members, Table
from treeplay.guards.walk.walk import Walk
from treeplay.values.kinds import CONTAINERS, is_a


class Containers:
    """What holds items, as a walk follows it."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._unordered: set[int] = set()  # parameter groups, which torch asks by name

    def groups_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Take note of an optimizer's parameter groups, before they are entered."""
        self._unordered |= {id(group) for group in vars(optimizer).get("param_groups", ())}

    def contents(self, value: Any, label: str) -> None:
        """Guard a container, of a derived class or not, and follow its items."""
        walk, found = self._walk, self._walk.dependencies
        if is_a(value, dict):
            self._dict(value, label)
        elif is_a(value, (list, collections.deque)):
            items = Items(value, label)
            items.may_be_replaced = type(value) in (list, collections.deque)
            found.items.append(items)
            found.containers[id(value)] = items
            walk.enter_each(items.recorded, label)
        elif is_a(value, set):
            members = Members(value, label)
            members.may_be_replaced = type(value) is set
            found.members.append(members)
            found.containers[id(value)] = members
            walk.enter_each(members.recorded, label)
        else:
            # As the base class does it: a subclass may iterate over something else.
            walk.enter_each(tuple.__iter__(value) if is_a(value, tuple) else frozenset.__iter__(value), label)

    def _dict(self, value: Any, label: str) -> None:
        if value is sys.modules or dict.keys(value) >= {"__builtins__", "__name__"}:
            return  # a namespace
        table = Table(value, label)
        table.may_be_replaced = type(value) in (dict, collections.defaultdict, collections.OrderedDict)
        self._walk.dependencies.add_table(table)
        for key, item in list(dict.items(value)):
            self._walk.enter(key, f"a key of {label}")
            self._walk.enter(item, table.label_of(key))
        table.is_unordered = id(value) in self._unordered
        if is_a(value, collections.OrderedDict) and len(table.recorded) > 1:
            self._walk.dependencies.asked.append(Asked(table.order, f"order of {label}", is_fresh=True))
        if is_a(value, collections.defaultdict):
            self._walk.follow(Asked(table.factory, f"{label}.default_factory"))

    def view(self, value: types.MappingProxyType[Any, Any], label: str) -> None:
        """Follow a view of a dictionary."""
        # Only the garbage collector is told which dictionary it is.
        for found in gc.get_referents(value):
            self._walk.enter(found, label)


def is_plain(value: Any) -> bool:
    """Whether a container is of a class of Python's or torch's, which has no attributes of its own."""
    return type(value) in (*CONTAINERS, collections.OrderedDict, collections.defaultdict, torch.Size)

"""Containers on a walk: each counts as a whole."""

from __future__ import annotations

import collections
import types
from typing import Any

import pytest

from support.reached import Holder, labels, reached

CONTAINERS: dict[str, tuple[Any, set[str]]] = {
    "list": ([1.0, [2.0]], {"argument[0]", "argument[1]", "argument[1][0]"}),
    "dict": ({"a": 1.0, "b": [2.0]}, {"argument['a']", "argument['b']", "argument['b'][0]"}),
    "set": ({1.0}, {"argument"}),
    "deque": (collections.deque([1.0, 2.0]), {"argument[0]", "argument[1]"}),
    "tuple": ((1.0, [2.0]), {"argument[1][0]"}),
    "frozenset": (frozenset([Holder]), set()),
    "defaultdict": (
        collections.defaultdict(list, a=[1.0]),
        {"argument['a']", "argument['a'][0]", "argument.default_factory"},
    ),
    "ordered": (collections.OrderedDict(a=1.0), {"argument['a']"}),
    "ordered, of two": (
        collections.OrderedDict(a=1.0, b=2.0),
        {"argument['a']", "argument['b']", "order of argument"},
    ),
    "view": ({"a": 1.0}.values(), {"argument['a']"}),
    "items": ({"a": 1.0}.items(), {"argument['a']"}),
    "proxy": (types.MappingProxyType({"a": 1.0}), {"argument['a']"}),
    "in a key": ({(1, Holder): 2.0}, {"argument[a tuple of 2]"}),
}


@pytest.mark.parametrize(("value", "expected"), CONTAINERS.values(), ids=CONTAINERS)
def test_containers_are_guarded_as_a_whole(value: Any, expected: set[str]) -> None:
    found = {place for place in labels(reached(lambda v: None, value)) if "argument" in place}
    assert found == expected


def test_a_container_in_one_place_may_be_replaced_and_one_in_two_may_not() -> None:
    shared: list[float] = []
    holder = Holder(a=[1.0], b=shared, c=[shared])
    reach = reached(lambda h: (h.a, h.b, h.c), holder)
    may = {id(items.holder): items.may_be_replaced for items in reach.items}
    assert may == {id(holder.a): True, id(shared): False, id(holder.c): True}


def test_a_container_of_a_users_class_may_not_be_replaced() -> None:
    class Steps(list[float]):
        pass

    steps = Steps([1.0])
    (items,) = reached(lambda s: s[0], steps, classes=(Steps,)).items
    assert items.holder is steps and not items.may_be_replaced


def test_cycles_end() -> None:
    holder = Holder()
    holder.me, holder.parts = holder, [holder]  # type: ignore[attr-defined]
    holder.parts.append(holder.parts)  # type: ignore[attr-defined]
    reach = reached(lambda h: (h.me, h.parts), holder)
    assert [len(items.recorded) for items in reach.items] == [2]

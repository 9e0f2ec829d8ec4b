"""Containers taken apart and put together are equal to what they were."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treeplay.values.flatten import flatten
from treeplay.values.structure import paths
from treeplay.values.unflatten import unflatten

Point = collections.namedtuple("Point", ["x", "y"])


@dataclass(frozen=True)
class Box:
    inside: Any
    name: Any = None


@dataclass
class Derived:
    base: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.base


LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.builds(frozenset))
KEYS = st.one_of(st.text(max_size=3), st.integers())
VALUES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.lists(parts, max_size=3).map(tuple),
        st.dictionaries(KEYS, parts, max_size=3),
        st.builds(Point, parts, parts),
        st.builds(Box, parts, parts),
    ),
    max_leaves=12,
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(VALUES)
def test_taken_apart_and_put_together_it_is_the_same(value: Any) -> None:
    leaves, structure = flatten(value)
    again = unflatten(structure, leaves)
    assert again == value and type(again) is type(value)
    assert flatten(again) == (leaves, structure)
    assert hash(structure) == hash(flatten(again)[1]) and len(paths(structure)) == len(leaves)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(VALUES)
def test_a_path_leads_to_its_leaf(value: Any) -> None:
    leaves, structure = flatten(value)
    for path, leaf in zip(paths(structure), leaves, strict=True):
        assert eval("value" + path[1:]) is leaf


def test_the_order_of_keys_is_part_of_the_structure() -> None:
    assert flatten({"a": 1, "b": 2})[1] != flatten({"b": 2, "a": 1})[1]


def test_other_containers_are_leaves() -> None:
    for value in ({1, 2}, bytearray(2), Box, torch.nn.Linear(1, 1), lambda: 1):
        assert flatten(value)[0] == [value]


def test_a_deque_keeps_its_most_items() -> None:
    leaves, structure = flatten(collections.deque([1, [2]], 3))
    again = unflatten(structure, leaves)
    assert (again, again.maxlen) == (collections.deque([1, [2]]), 3)
    assert structure != flatten(collections.deque([1, [2]]))[1] and paths(structure) == ["$[0]", "$[1][0]"]


def test_a_set_of_constants_is_its_keys_where_that_is_asked_for() -> None:
    leaves, structure = flatten([{1, ("a", None)}, 2], opens_sets=True)
    assert leaves == [2] and unflatten(structure, leaves) == [{1, ("a", None)}, 2]
    for value in ({Box}, {torch.ones(1)}, {(1, Box)}):
        assert flatten([value], opens_sets=True)[0] == [value]


def test_paths_read_like_code() -> None:
    value = {"batch": [1, (2, Box(3))], 4: Point(5, 6)}
    assert paths(flatten(value)[1]) == [
        "$['batch'][0]",
        "$['batch'][1][0]",
        "$['batch'][1][1].inside",
        "$['batch'][1][1].name",
        "$[4][0]",
        "$[4][1]",
    ]

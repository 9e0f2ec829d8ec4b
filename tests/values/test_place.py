"""Places, and the trails to them, which are plain data."""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import pytest

from treeplay.values.place import How, NthKey, Place, root


class Thing:
    """An object with an attribute, and a key of a dict."""

    def __init__(self, held: Any = None) -> None:
        self.held = held


def table_of(thing: Thing) -> Place:
    return root(thing, "self").child(How.ATTRIBUTE, thing, "held", "self.held")


def entry_of(thing: Thing, key: Any) -> Place:
    return table_of(thing).child(How.ITEM, thing.held, key, f"self.held[{type(key).__name__}]")


def test_a_trail_is_plain_data_and_holds_nothing() -> None:
    thing = Thing({"a": 0, Thing(): 1})
    seen = weakref.ref(thing)
    trail = entry_of(thing, list(thing.held)[1]).trail
    del thing
    assert seen() is None
    assert pickle.loads(pickle.dumps(trail)) == trail
    assert trail == ("self", (How.ITEM, NthKey(1)), (How.ATTRIBUTE, "held"))


def test_trails_are_equal_if_their_steps_are() -> None:
    one, other = Thing({"a": 1, "b": 2}), Thing({"a": 1, "b": 2})
    assert entry_of(one, "a").trail == entry_of(other, "a").trail and entry_of(one, "a") != entry_of(other, "a")
    assert len({entry_of(one, "a").trail, entry_of(other, "a").trail, entry_of(one, "b").trail}) == 2


def test_trails_from_roots_with_one_label_differ_by_their_numbers() -> None:
    cells = [root(Thing(0), "rate", nth=nth).child(How.ATTRIBUTE, None, "held", "rate.held") for nth in (0, 1)]
    assert [cell.trail for cell in cells] == [
        ("rate", (How.ATTRIBUTE, "held")),
        (("rate", 1), (How.ATTRIBUTE, "held")),
    ]


@pytest.mark.parametrize("key", [0, True, "a", (0, 1)])
def test_places_are_equal_if_they_are_one_entry_of_one_object(key: Any) -> None:
    table = {key: 1}
    one, other = root(table, "one").child(How.ITEM, table, key, "a"), root(table, "b").child(How.ITEM, table, key, "b")
    assert one == other and hash(one) == hash(other)
    assert one != Place(How.ATTRIBUTE, table, key, None, "a") and one != Place(How.ITEM, {}, key, None, "a")

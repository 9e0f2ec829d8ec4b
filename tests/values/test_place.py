"""Places, and the ways there, which are plain data."""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import pytest

from treeplay.values.place import How, Place, root


class Thing:
    """An object with an attribute, and a key of a dict."""

    def __init__(self, held: Any = None) -> None:
        self.held = held


def table_of(thing: Thing) -> Place:
    return root(thing, "self").child(How.ATTRIBUTE, thing, "held", "self.held")


def entry_of(thing: Thing, key: Any) -> Place:
    return table_of(thing).child(How.ITEM, thing.held, key, f"self.held[{type(key).__name__}]")


def test_a_path_is_plain_data_and_holds_nothing() -> None:
    thing = Thing({Thing(): 1})
    seen = weakref.ref(thing)
    path = entry_of(thing, next(iter(thing.held))).path
    del thing
    assert seen() is None
    assert pickle.loads(pickle.dumps(path)) == path
    assert path == ("self.held[Thing]", (How.ROOT, None), (How.ATTRIBUTE, "held"), (How.ITEM, None))


def test_paths_are_equal_if_their_steps_are() -> None:
    one, other = Thing({"a": 1, "b": 2}), Thing({"a": 1, "b": 2})
    assert entry_of(one, "a").path == entry_of(other, "a").path and entry_of(one, "a") != entry_of(other, "a")
    assert len({entry_of(one, "a").path, entry_of(other, "a").path, entry_of(one, "b").path}) == 2


@pytest.mark.parametrize("key", [0, True, "a", (0, 1)])
def test_places_are_equal_if_they_are_one_entry_of_one_object(key: Any) -> None:
    table = {key: 1}
    one, other = root(table, "one").child(How.ITEM, table, key, "a"), root(table, "b").child(How.ITEM, table, key, "b")
    assert one == other and hash(one) == hash(other)
    assert one != Place(How.ATTRIBUTE, table, key, None, "a") and one != Place(How.ITEM, {}, key, None, "a")

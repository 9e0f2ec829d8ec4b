"""Guards as code and guards as explanation: the code never says yes where something differs."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treeplay.guards.check.guards import Guards
from treeplay.guards.containers import Table
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Reach


class Thing:
    """What the program reads; its attributes are drawn."""


def walked(program: Callable[[], Any]) -> Guards:
    with Reads((Thing,)) as reads:
        program()
    return Guards(Reach(reads).walk([(program, "program")]).dependencies)


leaves = st.sampled_from([0, False, 0.0, -0.0, 1, True, 1.5, float("nan"), "a", b"a", None, (1, 2), torch.float32])
contents = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        | st.lists(inner, max_size=3).map(collections.deque)
        | st.sets(st.sampled_from([1, 2, "a"]), max_size=2)
    ),
    max_leaves=6,
)


def change(value: Any, name: str, new: Any) -> Any:
    """Put `new` somewhere into a container in place, or give it back to stand for `value`."""
    if isinstance(value, dict):
        value[name] = new
    elif isinstance(value, list | collections.deque) and value:
        value[-1] = new
    elif isinstance(value, list | collections.deque):
        value.append(new)
    elif isinstance(value, set):
        value.symmetric_difference_update({1})
    else:
        return new
    return value


@settings(max_examples=40, deadline=None)
@given(
    attributes=st.dictionaries(st.sampled_from("abc"), contents, min_size=1),
    changes=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abc"), contents), max_size=8),
)
def test_the_code_says_yes_only_where_nothing_differs(attributes: dict[str, Any], changes: Any) -> None:
    thing = Thing()
    vars(thing).update(attributes)
    guards = walked(lambda: [getattr(thing, name) for name in attributes])
    assert guards.holds()
    for name, key, new in [("d", "a", 1), *changes]:  # no program read `d`
        setattr(thing, name, change(getattr(thing, name, None), key, new))
        assert guards._quick is not None
        quick = guards._quick.by_python
        again = quick.__globals__["again"]
        quick.__globals__["again"] = lambda: False
        says_yes = quick()
        quick.__globals__["again"] = again
        differs = guards.first_difference() is not None
        assert not (says_yes and differs)
        assert guards.holds() is not differs


class Named:
    """A class whose dictionary is written to again and again, by others."""

    factor = 2

    def scaled(self, x: float) -> float:
        return x * self.factor


def test_the_entries_of_a_class_that_keeps_changing_are_compared_when_it_was_written_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thing = Named()
    with Reads((Named,)) as reads:
        thing.scaled(3.0)
    guards = Guards(Reach(reads).walk([(thing, "thing")]).dependencies)
    assert guards.first_difference() is None
    for other in range(6):  # until its version is no sign any more
        Named.other = other  # type: ignore[attr-defined]
        assert guards.holds()
    assert [table.label for table in guards._dependencies.tables if not table.is_steady] == ["Named."]

    looks: list[str] = []
    content = Table.content
    monkeypatch.setattr(Table, "content", lambda self, holder: looks.append(self.label) or content(self, holder))
    guards._write()  # code that calls the counting one
    assert guards.holds() and looks == ["Named."]
    assert all(guards.holds() for _ in range(5)) and looks == ["Named."]
    Named.other = 7  # type: ignore[attr-defined]
    assert guards.holds() and guards.holds() and looks == ["Named."] * 2
    monkeypatch.setattr(Named, "factor", 3)
    assert not guards.holds()

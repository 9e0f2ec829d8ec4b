"""Dependencies: which entries a warm call checks by itself, and the way to each place."""

from __future__ import annotations

from typing import Any

import torch

from support.reached import Holder, reached
from treeplay.guards.entries import spot_of
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Reach
from treeplay.values.place import How, Place, root


def place_of(how: How, holder: Any, key: Any) -> Place:
    return root(holder, "holder").child(how, holder, key, "place")


def test_entries_that_a_warm_call_checks_by_itself_are_left_free() -> None:
    table, items = {"a": torch.ones(1), "b": torch.ones(1)}, [torch.ones(1), torch.ones(2)]
    reach = reached(lambda t, i: None, table, items)
    spots = [spot_of(place_of(How.ITEM, table, "a")), spot_of(place_of(How.ITEM, items, 1))]
    written = [spot_of(place_of(How.ITEM, table, "b"))]
    reach.free([spot for spot in spots if spot], [spot for spot in written if spot])
    (guard,) = [guard for guard in reach.tables if guard.holder is table]
    assert (guard.free, guard.written, guard.is_steady) == ({"a"}, {"b"}, False)
    assert [guard.free for guard in reach.items] == [{1}]


def test_a_tensor_that_is_a_key_stays_guarded() -> None:
    weight = torch.ones(1)
    params, state = [weight], {weight: 1.0}
    reach = reached(lambda p, s: None, params, state)
    spot = spot_of(place_of(How.ITEM, params, 0))
    reach.free([spot] if spot else [], [])
    assert [guard.free for guard in reach.items] == [set()]


def test_every_step_of_the_way_to_a_place_is_guarded_once() -> None:
    holder = Holder(parts=[{"a": torch.ones(1)}])
    parts = root(holder, "holder").child(How.ATTRIBUTE, holder, "parts", "holder.parts")
    first = parts.child(How.ITEM, holder.parts, 0, "holder.parts[0]")  # type: ignore[attr-defined]
    place = first.child(How.ITEM, holder.parts[0], "a", "holder.parts[0]['a']")  # type: ignore[attr-defined]
    reach = Reach(Reads(())).walk([]).dependencies
    reach.guard_the_way([place, place])
    assert [asked.label for asked in reach.asked] == ["holder.parts[0]", "holder.parts"]

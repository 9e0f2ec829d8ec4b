"""Entries: which entry a place is, and what is there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.reached import Holder
from support.watched import Careful, Slotted
from treeplay.guards.entries import entry_of, spot_of
from treeplay.values.place import How, Place, root


def place_of(how: How, holder: Any, key: Any) -> Place:
    return root(holder, "holder").child(how, holder, key, "place")


@pytest.mark.parametrize(
    "make",
    [
        lambda: (place_of(How.ITEM, {"a": 1}, "a"), True),
        lambda: (place_of(How.ATTRIBUTE, Holder(a=1), "a"), True),
        lambda: (place_of(How.ATTRIBUTE, Holder, "kind"), True),
        lambda: (place_of(How.GRAD, torch.ones(1), None), False),
    ],
    ids=["item", "attribute", "of a class", "gradient"],
)
def test_a_place_is_one_spot(make: Callable[[], tuple[Place, bool]]) -> None:
    place, is_spot = make()
    assert (spot_of(place) is not None) == is_spot and spot_of(place) == spot_of(place)


def test_an_entry_is_looked_up_without_asking_the_class() -> None:
    value = Careful()
    value.a = 1.0
    Careful.seen.clear()
    assert entry_of(value, "a") == 1.0 and str(entry_of(value, "b")) == str(entry_of(Slotted(), "a")) == "nothing"
    assert not Careful.seen

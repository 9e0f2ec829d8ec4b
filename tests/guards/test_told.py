"""What is told of guards."""

from __future__ import annotations

from support.reached import Holder, reached
from treeplay.guards.told import places, plain_values, summary


def test_guards_tell_what_they_guard() -> None:
    holder = Holder(a=1.0, b=[2.0])
    found = reached(lambda: (holder.a, holder.b))  # type: ignore[attr-defined]
    assert {"holder.a = 1.0", "holder.b[0] = 2.0"} <= set(plain_values(found))
    assert "dictionaries" in summary(found) and "lists and sets" in summary(found)
    assert dict(places(found))["holder.b"] is holder.b  # type: ignore[attr-defined]

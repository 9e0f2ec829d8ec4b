"""What is told of guards."""

from __future__ import annotations

from support.reached import Holder, reached
from treeplay.guards.told import guarded_values, plain_values, summary_of_guards


def test_guards_tell_what_they_guard() -> None:
    holder = Holder(a=1.0, b=[2.0])
    found = reached(lambda: (holder.a, holder.b))  # type: ignore[attr-defined]
    assert {"holder.a = 1.0", "holder.b[0] = 2.0"} <= set(plain_values(found))
    assert "dictionaries" in summary_of_guards(found) and "lists and sets" in summary_of_guards(found)
    assert dict(guarded_values(found))["holder.b"] is holder.b  # type: ignore[attr-defined]

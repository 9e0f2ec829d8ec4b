"""Objects and classes on a walk: which attributes count."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
from torch.distributed.tensor import DTensor

from support.reached import Holder, labels, reached
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Reach


def test_of_a_watched_object_only_what_was_read_is_guarded() -> None:
    holder = Holder(a=1.0, b=2.0)
    found = labels(reached(lambda h: (h.a, hasattr(h, "c")), holder))
    assert {"argument.a", "argument.c"} <= found and "argument.b" not in found


def test_of_an_object_that_is_not_watched_all_counts() -> None:
    holder = Holder(a=1.0, b=2.0)
    found = labels(reached(lambda h: h.a, holder, classes=()))
    assert {"argument.a", "argument.b"} <= found


def test_of_a_thread_that_is_not_watched_nothing_counts() -> None:
    thread = threading.Thread()
    thread.woken = 1.0  # type: ignore[attr-defined]
    assert "argument.woken" not in labels(reached(lambda t: t, thread, classes=()))


def test_code_that_asks_behind_the_back_of_a_class_reads_all() -> None:
    holder = Holder(a=1.0, b=2.0)
    assert "argument.b" in labels(reached(lambda h: object.__getattribute__(h, "a"), holder))


def test_a_store_past_a_class_blinds_to_its_own_objects_alone() -> None:
    class Stores(Holder):
        def put(self, value: float) -> None:
            super().__setattr__("b", value)

    stores, other = Stores(a=1.0, unread=2.0), Holder(a=1.0, unread=2.0)
    found = labels(reached(lambda s, o: (s.put(3.0), s.a, o.a), stores, other))
    assert sum(label.endswith(".unread") for label in found) == 1


def test_the_class_of_an_object_is_guarded() -> None:
    class Derived(Holder):
        pass

    holder = Derived(a=1.0)
    reach = reached(lambda h: h.a, holder)
    assert any(value is holder and cls is Derived for value, cls, _ in reach.kinds) and Derived in reach.orders


def test_a_class_that_no_other_bases_can_be_given_to_needs_no_guard_of_its_order() -> None:
    assert Holder not in reached(lambda h: h.a, Holder(a=1.0)).orders
    with pytest.raises(TypeError, match="__bases__"):
        Holder.__bases__ = (Unrelated,)


class Unrelated:
    pass


def test_data_of_a_class_is_guarded_under_names_that_were_read() -> None:
    found = labels(reached(lambda h: h.kind, Holder()))
    assert "Holder.kind" in found and "Holder.unread" not in found and "Holder.__doc__" not in found


def test_data_of_a_class_counts_under_any_name_where_names_are_computed() -> None:
    assert "Holder.unread" not in labels(reached(lambda: getattr(Holder, "kind")))  # noqa: B009
    assert "Holder.unread" in labels(reached(lambda: getattr(Holder, "KIND".lower())))


def test_data_of_a_class_of_torchs_own_that_no_object_is_of_is_not_asked_by_computed_names() -> None:
    def asks(holder: Any, x: Any) -> Any:
        return getattr(holder, "a" + ""), isinstance(x, DTensor)

    found = labels(reached(asks, Holder(a=1.0), 1.0))
    assert not any(label.startswith("DTensor._op_dispatcher") for label in found)


def test_slots_are_guarded() -> None:
    class Slotted:
        __slots__ = ("a", "b")

    value = Slotted()
    value.a, value.b = [1.0], 2.0  # type: ignore[attr-defined]
    found = labels(reached(lambda v: v.a, value, classes=(Slotted,)))
    assert {"argument.a", "argument.a[0]"} <= found and "argument.b" not in found


def test_an_object_without_a_path_that_was_read_is_found_all_the_same() -> None:
    holder = Holder(a=1.0)
    kept = [holder]

    class Finder:
        def __call__(self) -> Any:
            return next(found for found in gc.get_objects() if found is holder).a

    del kept
    finder = Finder()
    assert any(place.endswith(".a") for place in labels(reached(finder)))


def test_what_was_only_assigned_counts_where_no_replay_assigns_it() -> None:
    holder = Holder(a=1.0)
    for also_assigned in (False, True):
        with Reads([Holder]) as reads:
            holder.a = 1.0
        found = labels(Reach(reads, also_assigned=also_assigned).walk([(holder, "argument")]).dependencies)
        assert ("argument.a" in found) == also_assigned

"""The kinds of guards: what each takes for the same, and what it says of a difference."""

from __future__ import annotations

import collections
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from treeplay.guards.alike import Elsewhere
from treeplay.guards.conditions import Asked, Code, Comparison, ContainerGuard, Data, differing
from treeplay.guards.containers import Items, Members, Table
from treeplay.guards.patterns import Pattern
from treeplay.torch_seam.patched import ABSENT, stand_in


def compare(guard: Any, *others: ContainerGuard) -> str:
    """What a guard says is different, or nothing."""
    return str(guard.differs(Comparison({id(other.holder): other for other in others})) or "")


class Holder:
    def method(self) -> None:
        pass


CHANGES: dict[str, tuple[Any, Callable[[Any], Any], str]] = {
    "entry": ({"a": 1}, lambda t: t.update(a=2), "t['a']: 2, recorded with 1"),
    "kind of entry": ({"a": 1}, lambda t: t.update(a=True), "t['a']: True, recorded with 1"),
    "zero": ({"a": 0.0}, lambda t: t.update(a=-0.0), "t['a']: -0.0, recorded with 0.0"),
    "equal entry": ({"a": (1, "b")}, lambda t: t.update(a=(1, "".join(["b"]))), ""),
    "new entry": ({}, lambda t: t.update(a=2), "t['a']: 2, recorded with nothing"),
    "entry gone": ({"a": 1}, lambda t: t.pop("a"), "t['a']: nothing, recorded with 1"),
    "order": ({"a": 1, "b": 2}, lambda t: t.update(a=t.pop("a")), "order of t: ['b', 'a'], recorded with ['a', 'b']"),
    "key": ({1: 1}, lambda t: (t.clear(), t.update({True: 1})), "order of t: [True], recorded with [1]"),
    "method": ({"a": Holder().method}, lambda t: t.update(a=getattr(t["a"].__self__, "method")), ""),  # noqa: B009
    "another object": ({"a": Holder()}, lambda t: t.update(a=Holder()), "t['a']: another object, recorded with"),
    "element": ([1, 2], lambda t: t.__setitem__(1, 3), "t[1]: 3, recorded with 2"),
    "equal element": ([1, "ab"], lambda t: t.__setitem__(1, "".join(["a", "b"])), ""),
    "length": ([1, 2], lambda t: t.append(3), "length of t: 3, recorded with 2"),
    "order of a list": ([1, 2], lambda t: t.reverse(), "t[0]: 2, recorded with 1"),
    "deque": (collections.deque([1, 2]), lambda t: t.rotate(), "t[0]: 2, recorded with 1"),
    "set": ({1, 2}, lambda t: t.add(3), "t: {1, 2, 3}, recorded with [1, 2]"),
    "other set": ({1}, lambda t: (t.clear(), t.add(True)), "t: "),
    "same set": ({1, 2}, lambda t: (t.discard(1), t.add(1)), ""),
    "nothing": ({"a": [1]}, lambda t: None, ""),
}


@pytest.mark.parametrize(("holder", "change", "text"), CHANGES.values(), ids=CHANGES)
def test_a_container_tells_its_first_difference(holder: Any, change: Callable[[Any], Any], text: str) -> None:
    holder = type(holder)(holder)
    guard = {dict: Table, set: Members}.get(type(holder), Items)(holder, "t")
    assert compare(guard) == ""
    change(holder)
    found = compare(guard)
    assert found.startswith(text.partition("{")[0]) if text else not found, found


def test_chosen_entries_are_the_only_ones_that_count() -> None:
    table = {"a": 1, "b": 2}
    guard = Table(table, "holder.", ("a", "c"))
    table["b"] = 3
    assert compare(guard) == ""
    table["c"] = 4
    assert compare(guard) == "holder.c: 4, recorded with nothing"


def test_entries_are_chosen_by_what_matters() -> None:
    table = {"a": 1, "_b": 2}
    guard = Table(table, "Holder.", matters=lambda name: name[0] != "_")
    table["_b"] = table["_c"] = 3
    assert compare(guard) == "" and not guard.is_whole
    table["d"] = 4
    assert compare(guard) == "Holder.d: 4, recorded with nothing"


def test_a_table_that_may_grow_keeps_its_entries() -> None:
    table = {"a": 1}
    guard = Table(table, "cache")
    guard.may_grow = True
    table["b"] = 2
    assert compare(guard) == ""
    del table["a"]
    assert compare(guard) == "cache['a']: nothing, recorded with 1"


def test_free_entries_do_not_count_and_written_ones_may_be_the_like() -> None:
    table: dict[str, Any] = {"a": 1, "b": torch.ones(2)}
    guard = Table(table, "t")
    guard.free, guard.slots = {"a"}, {"b": Pattern(table["b"], Elsewhere(frozenset(), {}))}
    table.update(a=2, b=torch.zeros(2))
    assert compare(guard) == ""
    table["b"] = torch.zeros(3)
    assert compare(guard).startswith("t['b']: a tensor float32[3]")
    items = Items([1, 2], "l")
    items.free = {0}
    items.holder[0] = 5
    assert compare(items) == ""


WRITTEN: dict[str, tuple[Any, Any, bool]] = {
    "another tensor": (torch.ones(2), torch.zeros(2), True),
    "another dtype": (torch.ones(2), torch.ones(2).double(), False),
    "no tensor": (torch.ones(2), None, False),
    "in a list": ([torch.ones(2), 1], [torch.zeros(2), 1], True),
    "a longer list": ([torch.ones(2)], [torch.zeros(2)] * 2, False),
    "in a dict": ({"a": torch.ones(2)}, {"a": torch.zeros(2)}, True),
    "another key": ({"a": torch.ones(2)}, {"b": torch.ones(2)}, False),
    "a number": (1.0, float("1"), True),
    "another number": (1.0, 2.0, False),
}


@pytest.mark.parametrize(("before", "found", "is_fine"), WRITTEN.values(), ids=WRITTEN)
def test_what_a_replay_writes_may_be_the_like(before: Any, found: Any, is_fine: bool) -> None:
    table = {"a": before}
    guard = Table(table, "t")
    guard.slots = {"a": Pattern(before, Elsewhere(frozenset(), {}))}
    table["a"] = found
    assert (compare(guard) == "") == is_fine


def test_an_equal_container_in_its_only_place_is_the_same_and_guarded_from_then_on() -> None:
    inner = [1.0, 2.0]
    table: dict[str, Any] = {"a": inner}
    outer, items = Table(table, "t"), Items(inner, "t['a']")
    items.may_be_replaced = True
    table["a"] = fresh = [1.0, 2.0]
    comparison = Comparison({id(inner): items})
    assert outer.differs(comparison) is None and items.differs(comparison) is None
    for commit in comparison.commits:
        commit()
    assert items.holder is fresh and comparison.containers == {id(fresh): items}
    outer.go_over_to(table)
    table["a"] = [1.0, 3.0]
    assert str(outer.differs(Comparison({id(fresh): items}))).startswith("t['a'][1]: 3.0, recorded with 2.0")


def test_an_equal_container_is_another_where_a_program_may_tell() -> None:
    table: dict[str, Any] = {"a": [1.0]}
    outer, items = Table(table, "t"), Items(table["a"], "t['a']")
    table["a"] = [1.0]
    assert compare(outer, items) == "t['a']: another object, recorded with [1.0]"


def test_containers_in_tuples_are_compared_too() -> None:
    inner = [1.0]
    table: dict[str, Any] = {"a": (inner, 2)}
    outer, items = Table(table, "t"), Items(inner, "t['a'][0]")
    items.may_be_replaced = True
    table["a"] = ([1.0], 2)
    assert compare(outer, items) == ""
    table["a"] = ([3.0], 2)
    assert compare(outer, items) == "t['a'][0][0]: 3.0, recorded with 1.0"
    table["a"] = ([1.0], 2, 3)
    assert compare(outer, items) != ""


def test_what_is_asked_is_compared_and_taken_over() -> None:
    answers = ["ab"]
    asked = Asked(lambda: answers[-1], "answer")
    answers.append("".join(["a", "b"]))
    comparison = Comparison({})
    assert asked.differs(comparison) is None
    for commit in comparison.commits:
        commit()
    assert asked.recorded is answers[-1]
    answers.append("c")
    assert compare(asked) == "answer: 'c', recorded with 'ab'"
    asked.is_free = True
    assert compare(asked) == ""


def function(a: int = 1, *, b: int = 2) -> int:
    return a + b


def test_a_function_is_its_code_and_its_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Code(function, "function")  # type: ignore[arg-type]
    assert compare(guard) == ""
    monkeypatch.setattr(function, "__defaults__", (1,))
    assert compare(guard) == ""
    monkeypatch.setattr(function, "__defaults__", (3,))
    assert compare(guard) == "function.__defaults__: (3,), recorded with (1,)"
    monkeypatch.undo()
    monkeypatch.setattr(function, "__kwdefaults__", {"b": 4})
    assert compare(guard).startswith("function.__kwdefaults__: {'b': 4}")
    monkeypatch.undo()
    monkeypatch.setattr(function, "__code__", (lambda a=1, *, b=2: a).__code__)
    assert compare(guard).startswith("function.__code__: ")


@pytest.mark.parametrize(
    ("value", "change"),
    [
        (bytearray(b"ab"), lambda v: v.__setitem__(0, 1)),
        (np.zeros(2), lambda v: v.__setitem__(0, -0.0)),
        (np.zeros((2, 3)), lambda v: setattr(v, "shape", (3, 2))),
        (np.zeros(2), lambda v: setattr(v, "dtype", np.int64)),
        (np.zeros(2), lambda v: v.setflags(write=False)),
        (io.StringIO("ab"), lambda v: v.write("c")),
        (io.StringIO("ab"), lambda v: v.seek(1)),
        (io.BytesIO(b"ab"), lambda v: v.truncate(1)),
        (io.BytesIO(b"ab"), lambda v: v.close()),
    ],
    ids=["bytes", "sign of a zero", "shape", "dtype", "read only", "text", "place", "shorter", "closed"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_memory_is_compared_by_its_bytes(value: Any, change: Callable[[Any], None]) -> None:
    guard = Data(value, "table")
    assert compare(guard) == ""
    change(value)
    assert compare(guard).endswith(f"the values of this {type(value).__name__} then")


def test_an_object_at_the_address_of_one_that_is_gone_is_another() -> None:
    table = np.array([float("1000.5"), None], dtype=object)
    guard = Data(table, "table")
    table[0] = None
    table[0] = float("2000.5")
    assert compare(guard) != ""
    table[0] = float("1000.5")
    assert compare(guard) == ""


def test_what_stands_in_for_a_function_of_a_class_is_not_seen() -> None:
    def ours() -> None:
        pass

    def instead() -> None:
        pass

    table: dict[str, Any] = {"a": function}
    guard = Table(table, "Holder.", matters=lambda _: True)
    stand_in(instead, function)
    stand_in(ours, ABSENT)
    table.update(a=instead, b=ours)
    assert compare(guard) == ""


def test_places_name_what_is_guarded() -> None:
    guards = (Table({"a": 1}, "t"), Table({"a": 1}, "h.", ("a",)), Items([2], "l"), Members({3}, "s"))
    assert [place for guard in guards for place, _ in guard.places()] == ["t['a']", "h.a", "l[0]", "s"]


def test_two_that_look_alike_are_another_object() -> None:
    assert str(differing("a", Holder(), Holder())) == "a: another object, recorded with this Holder"

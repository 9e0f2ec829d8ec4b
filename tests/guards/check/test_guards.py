"""The check of guards: quick while nothing changes, and a comparison of values when something did."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from support import jit
from treeplay.guards.check import quick
from treeplay.guards.check.guards import Guards
from treeplay.guards.dependencies import Dependencies
from treeplay.guards.entries import spot_of
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Reach
from treeplay.values.place import How, Place, root


class Holder:
    kind = 1.0

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)


class Twin(Holder):
    pass


class Swapped(Holder):
    """A class whose bases can be exchanged."""


def walked(program: Callable[[], Any], *, classes: tuple[type, ...] = (Holder, Swapped)) -> Dependencies:
    with Reads(classes) as reads:
        program()
    return Reach(reads).walk([(program, "program")]).dependencies


def guards_of(program: Callable[[], Any]) -> Guards:
    """The guards over what `program` reads, quick already."""
    guards = Guards(walked(program))
    assert guards.holds() and guards.holds is not guards.again
    return guards


@contextlib.contextmanager
def slow_looks(guards: Guards) -> Iterator[list[bool]]:
    """The answers of every slow comparison in a block."""
    found: list[bool] = []
    again, check_of = guards.again, guards._quick
    assert check_of is not None

    def noted() -> bool:
        found.append(again())
        return found[-1]

    check_of._again = noted
    for function in (check_of.by_python, check_of._words):
        if function is not None and function.__globals__:
            function.__globals__["again"] = noted
    yield found


def test_guards_are_quick_while_nothing_changes() -> None:
    holder = Holder(a=1.0)
    guards = guards_of(lambda: holder.a)
    with slow_looks(guards) as looks:
        assert all(guards.holds() for _ in range(200))
    assert not looks


def test_a_change_is_found_and_its_end_too() -> None:
    holder = Holder(a=1.0)
    guards = guards_of(lambda: holder.a)
    for _ in range(3):
        holder.a = 2.0  # type: ignore[attr-defined]
        assert not guards.holds() and not guards.holds()
        assert str(guards.what) == "holder.a: 2.0, recorded with 1.0"
        holder.a = float("1")  # type: ignore[attr-defined]
        assert guards.holds() and guards.holds() and guards.what is None


def function(a: int = 1, *, b: int = 2) -> int:
    return a + b


def _base(is_on: bool) -> None:
    Swapped.__bases__ = (Twin,) if is_on else (Holder,)


def _code(is_on: bool, before: Any = function.__code__) -> None:
    function.__code__ = (lambda a=1, *, b=2: a - b).__code__ if is_on else before


def _defaults(is_on: bool) -> None:
    function.__defaults__ = (2,) if is_on else (1,)


def _keywords(is_on: bool) -> None:
    function.__kwdefaults__ = {"b": 3} if is_on else {"b": 2}


class World:
    """Something of each kind, the program that reads it, and a change of it that can be undone."""

    def __init__(self) -> None:
        self.table: dict[str, Any] = {"a": 1.0, "b": 2.0}
        self.items, self.members = [1.0, 2.0], {1, 2}
        self.deque = collections.deque([1.0, 2.0])
        self.empty: list[Any] = []
        self.holder, self.swapped = Holder(a=1.0), Swapped()
        self.variable = 1.0
        self.tensor = torch.ones(2)
        self.bytes = bytearray(b"ab")


CHANGES: dict[str, tuple[Callable[[World], Any], Callable[[World, bool], Any], str]] = {
    "entry": (lambda w: w.table, lambda w, on: w.table.update(a=3.0 if on else 1.0), "table['a']: 3.0, recorded with"),
    "new entry": (lambda w: w.table, lambda w, on: w.table.update(c=1) if on else w.table.pop("c"), "table['c']: 1"),
    "element": (lambda w: w.items, lambda w, on: w.items.__setitem__(0, 3.0 if on else 1.0), "items[0]: 3.0"),
    "length": (lambda w: w.items, lambda w, on: w.items.append(3.0) if on else w.items.pop(), "length of"),
    "no longer empty": (lambda w: w.empty, lambda w, on: w.empty.append(3.0) if on else w.empty.clear(), "length of"),
    "deque": (lambda w: w.deque, lambda w, on: w.deque.rotate(), "deque[0]: 2.0"),
    "set": (
        lambda w: w.members,
        lambda w, on: w.members.add(3) if on else w.members.discard(3),
        "members: [1, 2, 3], recorded with [1, 2]",
    ),
    "class of an object": (
        lambda w: w.holder,
        lambda w, on: setattr(w.holder, "__class__", Twin if on else Holder),
        "holder.__class__: type Twin",
    ),
    "data of a class": (lambda w: w.holder.kind, lambda w, on: setattr(Holder, "kind", 3.0 if on else 1.0), "Holder.k"),
    "hidden by an attribute": (
        lambda w: w.holder.kind,
        lambda w, on: setattr(w.holder, "kind", 3.0) if on else delattr(w.holder, "kind"),
        "holder.kind: 3.0, recorded with nothing",
    ),
    "bases": (lambda w: w.swapped, lambda w, on: _base(on), "Swapped.__mro__"),
    "code": (lambda w: function(), lambda w, on: _code(on), "function.__code__"),
    "defaults": (lambda w: function(), lambda w, on: _defaults(on), "function.__defaults__: (2,), recorded with (1,)"),
    "keywords": (lambda w: function(), lambda w, on: _keywords(on), "__kwdefaults__['b']: 3, recorded with 2"),
    "another function": (
        lambda w: function(),
        lambda w, on: globals().update(function=other if on else first_function),
        "function: function other, recorded with function function",
    ),
    "attribute": (lambda w: w.variable, lambda w, on: setattr(w, "variable", 2.0 if on else 1.0), "variable: 2.0"),
    "kind of number": (lambda w: w.variable, lambda w, on: setattr(w, "variable", 1 if on else 1.0), "variable: 1"),
    "shape of a tensor": (lambda w: w.tensor, lambda w, on: w.tensor.resize_(3 if on else 2), "tensor: a tensor"),
    "gradients of a tensor": (lambda w: w.tensor, lambda w, on: w.tensor.requires_grad_(on), "needs a gradient"),
    "bytes": (lambda w: w.bytes, lambda w, on: w.bytes.__setitem__(0, 99 if on else 97), "bytes: others"),
}


def other(a: int = 1, *, b: int = 2) -> int:
    return a - b


first_function = function


@pytest.mark.parametrize("what", CHANGES)
def test_each_kind_of_change_is_found_named_and_forgiven(what: str) -> None:
    program, change, text = CHANGES[what]
    world = World()
    with Reads([World, Holder, Swapped]) as reads:
        program(world)
    guards = Guards(Reach(reads).walk([(program, "program"), (world, "world")]).dependencies)
    assert guards.holds() and guards.holds()
    change(world, True)
    try:
        assert not guards.holds() and not guards.holds()
        assert text in str(guards.what), guards.what
    finally:
        change(world, False)
    assert guards.holds() and guards.holds(), guards.what


def test_a_value_written_back_is_accepted_after_one_look() -> None:
    holder = Holder(a=1.5, b=(1, "ab"), c=[1.0])
    guards = guards_of(lambda: (holder.a, holder.b, holder.c))  # type: ignore[attr-defined]
    with slow_looks(guards) as looks:
        vars(holder).update(a=float("1.5"), b=(1, "".join(["a", "b"])), c=[1.0])
        assert guards.holds()
    assert looks == [True]


def test_equal_defaults_of_a_function_are_accepted_after_one_look() -> None:
    def program(a: Any = (1, 2), *, b: int = 2) -> Any:
        return a, b

    guards = guards_of(program)
    for _ in range(3):
        program.__defaults__, program.__kwdefaults__ = ((1, int("2")),), {"b": 2}
        with slow_looks(guards) as looks:
            assert guards.holds() and guards.holds() and guards.holds()
        assert looks == [True]


def test_a_version_alone_that_changes_is_accepted() -> None:
    holder = Holder(a=1.0)
    guards = guards_of(lambda: holder.a)
    with slow_looks(guards) as looks:
        holder.unread = 2.0  # type: ignore[attr-defined]
        assert guards.holds()
    assert looks == [True]
    assert guards.holds()


def test_the_text_of_the_check_is_used_again_when_only_versions_change() -> None:
    holder = Holder(a=1.0, b=[])
    guards = guards_of(lambda: (holder.a, holder.b))  # type: ignore[attr-defined]
    before = guards.holds
    holder.unread = 2.0  # type: ignore[attr-defined]
    assert guards.holds() and guards.holds is before
    holder.b.append(1.0)  # type: ignore[attr-defined]
    assert not guards.holds() and guards.holds is before
    holder.b.clear()  # type: ignore[attr-defined]
    assert guards.holds() and guards.holds is before


def test_a_dictionary_that_keeps_changing_is_compared_by_its_entries() -> None:
    holder = Holder(a=1.0)
    guards = guards_of(lambda: holder.a)
    with slow_looks(guards) as looks:
        for count in range(20):
            holder.count = count  # type: ignore[attr-defined]
            assert guards.holds()
    assert looks == [True, True]
    with slow_looks(guards) as looks:
        holder.a = 2.0  # type: ignore[attr-defined]
        assert not guards.holds() and str(guards.what) == "holder.a: 2.0, recorded with 1.0"
    assert looks == [False]


def test_a_dictionary_that_changes_rarely_stays_a_steady_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "_YOUNG", 3)
    holder = Holder(a=1.0)
    guards = guards_of(lambda: holder.a)
    with slow_looks(guards) as looks:
        for count in range(10):
            holder.count = count  # type: ignore[attr-defined]
            assert all(guards.holds() for _ in range(5))
    assert looks == [True] * 10


def test_replaced_equal_containers_are_accepted_in_one_place_only() -> None:
    shared: list[float] = [1.0]
    holder = Holder(a=[1.0], b=shared, c=shared)
    guards = guards_of(lambda: (holder.a, holder.b, holder.c))  # type: ignore[attr-defined]
    for _ in range(3):
        holder.a = [1.0]  # type: ignore[attr-defined]
        assert guards.holds() and guards.holds()
    holder.a.append(2.0)  # type: ignore[attr-defined]
    assert not guards.holds() and "length of holder.a: 2" in str(guards.what)
    holder.a = [1.0]  # type: ignore[attr-defined]
    assert guards.holds()
    holder.b = [1.0]  # type: ignore[attr-defined]
    assert not guards.holds() and "holder.b" in str(guards.what)
    holder.b = shared  # type: ignore[attr-defined]
    assert guards.holds()


def test_containers_within_replaced_containers_are_followed() -> None:
    holder = Holder(a={"x": [1.0, {"y": {2}}]})
    guards = guards_of(lambda: holder.a)
    for _ in range(3):
        holder.a = {"x": [1.0, {"y": {2}}]}  # type: ignore[attr-defined]
        assert guards.holds()
    holder.a["x"][1]["y"].add(3)  # type: ignore[attr-defined]
    assert not guards.holds()
    holder.a["x"][1]["y"].discard(3)  # type: ignore[attr-defined]
    assert guards.holds()


def test_two_facts_of_tensors_must_stay_of_two() -> None:
    first, second = torch.ones(2), torch.ones(2)
    reach = walked(lambda: (first.shape, second.shape))
    guards = Guards(reach)
    state = [torch.ones(2)]
    guards.places_of_inputs = (root(state, "state").child(How.ITEM, state, 0, "state[0]"),)
    assert guards.holds() and guards.are_distinct()
    state[0] = first
    assert not guards.are_distinct() and not guards.again()
    assert str(guards.what) == "state: one tensor in two places, recorded with different tensors"
    state[0] = torch.zeros(2)
    assert guards.again()


def place_of(holder: Any, key: Any) -> Place:
    return root(holder, "holder").child(How.ITEM, holder, key, "place")


def written(reach: Dependencies, *places: Place) -> Dependencies:
    reach.free([], [spot for place in places if (spot := spot_of(place)) is not None])
    return reach


def test_a_slot_that_a_replay_writes_may_hold_the_like() -> None:
    table: dict[str, Any] = {"state": torch.ones(2), "scale": 2.0}
    guards = Guards(written(walked(lambda: table["state"]), place_of(table, "state")))
    assert guards.holds()
    with slow_looks(guards) as looks:
        for _ in range(5):
            table["state"] = torch.zeros(2)
            assert guards.holds()
    assert not looks
    table["state"] = torch.zeros(3)
    assert not guards.holds() and str(guards.what).startswith("table['state']: a tensor float32[3]")
    table["state"] = torch.ones(2)
    assert guards.holds()
    table["scale"] = 3.0
    assert not guards.holds() and str(guards.what).startswith("table['scale']: 3.0")


def test_an_element_that_a_replay_writes_does_not_count() -> None:
    items = [torch.ones(1), torch.ones(2)]
    guards = Guards(written(walked(lambda: items[0]), place_of(items, 0)))
    assert guards.holds()
    items[0] = torch.zeros(1)
    assert guards.holds()
    items[1] = torch.zeros(2)
    assert not guards.holds() and str(guards.what).startswith("items[1]")


def test_a_deleted_attribute_and_a_broken_object_are_no_errors() -> None:
    holder = Holder(a=1.0)
    guards = guards_of(lambda: holder.a)
    del holder.a  # type: ignore[attr-defined]
    assert not guards.holds() and str(guards.what) == "holder.a: nothing, recorded with 1.0"


def test_an_equality_of_somebodys_own_is_never_asked() -> None:
    class Equal:
        def __eq__(self, _: object) -> bool:
            raise AssertionError("asked")

        def __hash__(self) -> int:
            return 1

    holder = Holder(a=Equal(), b={Equal()})
    guards = guards_of(lambda: (holder.a, holder.b))  # type: ignore[attr-defined]
    holder.a = Equal()  # type: ignore[attr-defined]
    assert not guards.holds()


def test_tensors_of_which_facts_are_guarded_are_known() -> None:
    tensor = torch.ones(1)
    assert Guards(walked(lambda: tensor.shape)).tensors() == [tensor]


STATE: dict[str, Callable[[Tensor], tuple[Any, Callable[[], Tensor]]]] = {
    "list": lambda tensor: (holder := [tensor], lambda: holder[0]),
    "tuple in a list": lambda tensor: (holder := [(tensor, 2)], lambda: holder[0][0]),
    "list in a dict": lambda tensor: (holder := {"a": [tensor]}, lambda: holder["a"][0]),
    "deque": lambda tensor: (holder := collections.deque([tensor]), lambda: holder[0]),
}


def of_the_recording(jitted: Any) -> Guards:
    (recording,) = (recording for entry in jitted._manager.cache.table for recording in entry.recordings)
    guards: Guards = recording.signature.guarded
    return guards


@pytest.mark.parametrize("where", STATE)
def test_state_that_stays_in_its_container_is_found_once(where: str) -> None:
    holder, find = STATE[where](torch.ones(3))
    jitted = jit(lambda x: find().mul_(0.5).add_(x) - x)
    for _ in range(4):
        jitted(torch.ones(3))
    guards = of_the_recording(jitted)
    assert guards.may_keep and guards.kept is not None and not guards._state_is_alike.read_anew, holder


def test_state_in_a_list_whose_tensors_keep_being_replaced_is_read_anew() -> None:
    state = [torch.ones(3), torch.ones(3)]
    jitted = jit(lambda x: state[0].mul_(0.5).add_(x) - state[1])
    for _ in range(6):
        state[0] = torch.ones(3)
        jitted(torch.ones(3))
    guards = of_the_recording(jitted)
    assert [str(place)[-3:] for place in guards._state_is_alike.read_anew] == ["[0]", "[1]"]
    assert jitted.statistics().replays == 5


def test_state_beside_a_global_that_keeps_changing_is_found_once() -> None:
    names: dict[str, Any] = {"state": [torch.ones(3)], "other": 0}
    exec("def step(x): return state[0].mul_(0.5).add_(x) - x", names)
    jitted = jit(names["step"])
    for call in range(6):
        names["other"] = call
        jitted(torch.ones(3))
    assert not of_the_recording(jitted)._state_is_alike.read_anew

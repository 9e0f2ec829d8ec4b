"""Reach: what the walk over a run's reads finds, and what it leaves out."""

from __future__ import annotations

import collections
import contextvars
import functools
import gc
import inspect
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from support import training
from treeplay.guards import reach as module_of_reach
from treeplay.guards.containers import Table
from treeplay.guards.entries import spot_of
from treeplay.guards.reach import Reach, TooMuch
from treeplay.guards.reads import Reads
from treeplay.trace.call import Call
from treeplay.trace.jit import trace
from treeplay.values.place import Binding, How, root
from treeplay.values.structure import flatten

RATE = 2.0
UNUSED = 3.0
STEPS: list[float] = [1.0]


class Holder:
    kind = "holder"
    unread = "unread"

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def scaled(self) -> Any:
        return self.a


def reached(program: Any, *roots: Any, classes: tuple[type, ...] = (Holder,)) -> Reach:
    """The walk after a run of `program`."""
    with Reads(classes) as reads:
        program(*roots)
    return Reach(reads).walk([(program, "program"), *((value, "argument") for value in roots)])


def labels(reach: Reach) -> set[str]:
    """The places of all that is guarded, but those of Python and its library."""
    tables = (guard for guard in reach.tables if not guard.label.startswith(("builtins.", "Tensor.", "TensorBase.")))
    return {place for guard in (*tables, *reach.items, *reach.members, *reach.asked) for place, _ in guard.places()}


def functions(reach: Reach) -> set[str]:
    return {guard.label.rpartition(".")[2] for guard in reach.functions}


def test_a_variable_of_a_closure_is_guarded() -> None:
    scale = 2.0
    reach = reached(lambda: scale * 2)
    assert "scale" in labels(reach)
    scale = 3.0
    assert any(asked.label == "scale" and asked.ask() == 3.0 and asked.recorded == 2.0 for asked in reach.asked)


def test_globals_are_guarded_by_the_names_of_code_that_ran() -> None:
    found = labels(reached(lambda: RATE))
    assert {name for name in found if name.startswith(f"{__name__}.")} == {f"{__name__}.RATE"}


def helper() -> float:
    return RATE + STEPS[0]


def test_asking_for_a_signature_guards_nothing_of_the_inspect_module_itself() -> None:
    def plain(x: float, *, scale: float = 2.0) -> float:
        return x * scale

    def annotated(x: Holder) -> None: ...

    found = labels(reached(lambda: inspect.signature(plain).bind(1.0)))
    assert not any("_filesbymodname" in label or "modulesbyfile" in label for label in found)
    found = labels(reached(lambda: inspect.signature(annotated, eval_str=True)))  # that evaluates text in the module
    assert any("modulesbyfile" in label for label in found)


def test_a_global_function_that_ran_is_entered_and_one_that_did_not_is_not() -> None:
    def program(call: bool = True) -> float:
        return helper() if call else unused()

    reach = reached(program)
    assert {"program", "helper"} <= functions(reach) and "unused" not in functions(reach)
    assert {f"{__name__}.RATE", "STEPS[0]"} <= labels(reach) and f"{__name__}.UNUSED" not in labels(reach)


def unused() -> float:
    return UNUSED


def test_functions_within_functions_and_generators_are_followed() -> None:
    def program() -> Any:
        def inner() -> float:
            return RATE

        return [inner() for _ in range(1)], [*(helper() for _ in range(1))]

    reach = reached(program)
    assert {f"{__name__}.RATE", f"{__name__}.helper"} <= labels(reach)


def test_defaults_are_entered() -> None:
    holder, other = Holder(a=[1.0]), Holder(a=[2.0])

    def program(first: Any = holder, *, second: Any = other) -> Any:
        return first.a, second.a

    reach = reached(program)
    assert {id(holder.a), id(other.a)} <= {id(items.holder) for items in reach.items}


def test_attributes_of_a_function_are_guarded() -> None:
    def program() -> Any:
        return program.rate  # type: ignore[attr-defined]

    program.rate = 2.0  # type: ignore[attr-defined]
    assert any(place.endswith(".rate") for place in labels(reached(program)))


def test_a_partial_is_guarded_with_its_arguments() -> None:
    def scaled(steps: list[float], *, more: list[float]) -> float:
        return steps[0] * more[0]

    steps, more = [1.0], [2.0]
    reach = reached(functools.partial(scaled, steps, more=more))
    assert {id(steps), id(more)} == {id(items.holder) for items in reach.items} and "scaled" in functions(reach)


def test_a_bound_method_leads_to_its_object() -> None:
    holder = Holder(a=[1.0])
    reach = reached(holder.scaled)
    assert {"self.a", "self.a[0]"} <= labels(reach) and functions(reach) >= {"scaled"}


def test_of_a_watched_object_only_what_was_read_is_guarded() -> None:
    holder = Holder(a=1.0, b=2.0)
    found = labels(reached(lambda h: (h.a, hasattr(h, "c")), holder))
    assert {"argument.a", "argument.c"} <= found and "argument.b" not in found


def test_of_an_object_that_is_not_watched_all_counts() -> None:
    holder = Holder(a=1.0, b=2.0)
    found = labels(reached(lambda h: h.a, holder, classes=()))
    assert {"argument.a", "argument.b"} <= found


def test_code_that_asks_behind_the_back_of_a_class_reads_all() -> None:
    holder = Holder(a=1.0, b=2.0)
    assert "argument.b" in labels(reached(lambda h: object.__getattribute__(h, "a"), holder))


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


def test_slots_are_guarded() -> None:
    class Slotted:
        __slots__ = ("a", "b")

    value = Slotted()
    value.a, value.b = [1.0], 2.0  # type: ignore[attr-defined]
    found = labels(reached(lambda v: v.a, value, classes=(Slotted,)))
    assert {"argument.a", "argument.a[0]"} <= found and "argument.b" not in found


CONTAINERS: dict[str, tuple[Any, set[str]]] = {
    "list": ([1.0, [2.0]], {"argument[0]", "argument[1]", "argument[1][0]"}),
    "dict": ({"a": 1.0, "b": [2.0]}, {"argument['a']", "argument['b']", "argument['b'][0]"}),
    "set": ({1.0}, {"argument"}),
    "deque": (collections.deque([1.0, 2.0]), {"argument[0]", "argument[1]"}),
    "tuple": ((1.0, [2.0]), {"argument[1][0]"}),
    "frozenset": (frozenset([Holder]), set()),
    "defaultdict": (collections.defaultdict(list, a=[1.0]), {"argument['a']", "argument['a'][0]"}),
    "ordered": (collections.OrderedDict(a=1.0), {"argument['a']"}),
    "view": ({"a": 1.0}.values(), {"argument['a']"}),
    "items": ({"a": 1.0}.items(), {"argument['a']"}),
    "proxy": (types.MappingProxyType({"a": 1.0}), {"argument['a']"}),
    "in a key": ({(1, Holder): 2.0}, {"argument[a tuple of 2]"}),
}


@pytest.mark.parametrize(("value", "expected"), CONTAINERS.values(), ids=CONTAINERS)
def test_containers_are_guarded_as_a_whole(value: Any, expected: set[str]) -> None:
    found = {place for place in labels(reached(lambda v: None, value)) if place.startswith("argument")}
    assert found == expected


def test_a_container_in_one_place_may_be_replaced_and_one_in_two_may_not() -> None:
    shared: list[float] = []
    holder = Holder(a=[1.0], b=shared, c=[shared])
    reach = reached(lambda h: (h.a, h.b, h.c), holder)
    may = {id(items.holder): items.may_be_replaced for items in reach.items}
    assert may == {id(holder.a): True, id(shared): False, id(holder.c): True}


def test_a_container_of_a_users_class_may_not_be_replaced() -> None:
    class Steps(list[float]):
        pass

    steps = Steps([1.0])
    (items,) = reached(lambda s: s[0], steps, classes=(Steps,)).items
    assert items.holder is steps and not items.may_be_replaced


def test_cycles_end() -> None:
    holder = Holder()
    holder.me, holder.parts = holder, [holder]  # type: ignore[attr-defined]
    holder.parts.append(holder.parts)  # type: ignore[attr-defined]
    reach = reached(lambda h: (h.me, h.parts), holder)
    assert [len(items.recorded) for items in reach.items] == [2]


def test_a_weak_reference_is_guarded_and_keeps_nothing_alive() -> None:
    holder = Holder(a=1.0)
    reference = weakref.ref(holder)
    reach = reached(lambda: reference().a)  # type: ignore[union-attr]
    (alive,) = [asked for asked in reach.asked if asked.label.endswith("is alive")]
    assert alive.recorded is True
    del holder
    gc.collect()
    assert reference() is None and alive.ask() is False


def test_a_cache_may_grow_and_keeps_what_it_gave() -> None:
    @functools.lru_cache
    def cached(x: int) -> float:
        return x * RATE

    cached(1)
    reach = reached(lambda: cached(1))
    (table,) = [table for table in reach.tables if table.may_grow]
    before = table.content(table.holder)
    cached(2)
    assert table.content(table.holder) == before != {}
    cached.cache_clear()
    assert table.content(table.holder) != before


def test_a_context_variable_is_asked() -> None:
    variable: contextvars.ContextVar[float] = contextvars.ContextVar("variable", default=1.0)
    reach = reached(lambda: variable.get())
    (asked,) = [asked for asked in reach.asked if asked.label == "variable.get()"]
    token = variable.set(2.0)
    assert asked.ask() == 2.0
    variable.reset(token)


def test_values_of_a_thread_are_asked() -> None:
    local = threading.local()
    local.a = 1.0
    reach = reached(lambda: local.a)
    (asked,) = [asked for asked in reach.asked if asked.label == "local.a"]
    assert asked.recorded == 1.0
    local.a = 2.0
    assert asked.ask() == 2.0


@pytest.mark.parametrize("value", [bytearray(b"ab"), np.ones(2), memoryview(b"ab")], ids=lambda v: type(v).__name__)
def test_memory_is_guarded_by_its_bytes(value: Any) -> None:
    reach = reached(lambda v: None, value)
    assert [data.value is value for data in reach.data] == [True]


def test_large_memory_is_not_compared_and_objects_in_an_array_are_entered() -> None:
    large, objects = np.zeros(1 << 20), np.array([Holder()])
    reach = reached(lambda a, b: None, large, objects)
    assert [value is large for value, _ in reach.large] == [True]
    assert [data.value is objects for data in reach.data] == [True]
    assert any(value is objects[0] for value, _, _ in reach.kinds)


def test_data_of_a_class_counts_under_any_name_where_names_are_computed() -> None:
    assert "Holder.unread" not in labels(reached(lambda: getattr(Holder, "kind")))  # noqa: B009
    assert "Holder.unread" in labels(reached(lambda: getattr(Holder, "KIND".lower())))


def test_a_step_of_an_optimizer_reaches_little_of_torch() -> None:
    model = torch.nn.Linear(2, 2)
    step = training(model, torch.optim.Adam(model.parameters(), lr=0.1))
    args = torch.ones(1, 2), torch.ones(1, 2)
    for _ in range(2):
        step(*args)
    leaves, structure = flatten((args, {}))
    guards = trace(step, Call(args, {}, leaves, structure)).signature.guarded
    assert int(str(guards).partition(" dictionaries")[0]) < 500


def test_facts_of_tensors_are_guarded_with_what_hangs_on_them() -> None:
    tensor = torch.ones(2)
    tensor.rate = 2.0  # type: ignore[attr-defined]
    reach = reached(lambda t: t.rate, tensor)
    assert reach.tensors[id(tensor)][0] is tensor and "argument.rate" in labels(reach)


def test_iterators_are_found() -> None:
    iterator = iter([1.0])
    reach = reached(lambda i: None, iterator)
    assert [value is iterator for value, _ in reach.iterators] == [True]


def test_a_function_without_a_path_that_ran_is_found_all_the_same() -> None:
    def hidden() -> float:
        return RATE

    found = [found for found in gc.get_referrers(hidden.__code__) if isinstance(found, types.FunctionType)]
    ask = found.__iter__().__next__  # an iterator that is used up leads nowhere
    reach = reached(lambda: ask()())
    assert "hidden" in functions(reach)


def test_an_object_without_a_path_that_was_read_is_found_all_the_same() -> None:
    holder = Holder(a=1.0)
    kept = [holder]

    class Finder:
        def __call__(self) -> Any:
            return next(found for found in gc.get_objects() if found is holder).a

    del kept
    finder = Finder()
    assert any(place.endswith(".a") for place in labels(reached(finder)))


def test_imports_of_code_that_ran_are_guarded() -> None:
    def program() -> Any:
        import math

        return math.pi

    reach = reached(program)
    assert any(place == "sys.modules.math" for place in labels(reach))


def test_too_many_objects_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_of_reach, "_MOST_OBJECTS", 100)
    many = [[float(k)] for k in range(200)]
    with pytest.raises(TooMuch):
        reached(lambda m: None, many)


def test_an_attribute_that_still_is_other_than_before_is_a_change() -> None:
    holder = Holder(a=1.0, b=2.0, c=3.0)

    def program(held: Any) -> None:
        held.a = held.a + 1
        held.b = 2.0
        held.new = held.c

    reach = reached(program, holder)
    assert [(name, str(before)) for _, name, before in reach.changed] == [("a", "1.0"), ("new", "nothing")]


def test_what_was_only_assigned_counts_where_no_replay_assigns_it() -> None:
    holder = Holder(a=1.0)
    for also_assigned in (False, True):
        with Reads([Holder]) as reads:
            holder.a = 1.0
        found = labels(Reach(reads, also_assigned=also_assigned).walk([(holder, "argument")]))
        assert ("argument.a" in found) == also_assigned


def place_of(how: How, holder: Any, key: Any) -> Binding:
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
def test_a_place_is_one_spot(make: Callable[[], tuple[Binding, bool]]) -> None:
    place, is_spot = make()
    assert (spot_of(place) is not None) == is_spot and spot_of(place) == spot_of(place)


def test_every_step_of_the_way_to_a_place_is_guarded_once() -> None:
    holder = Holder(parts=[{"a": torch.ones(1)}])
    parts = root(holder, "holder").child(How.ATTRIBUTE, holder, "parts", "holder.parts")
    first = parts.child(How.ITEM, holder.parts, 0, "holder.parts[0]")  # type: ignore[attr-defined]
    place = first.child(How.ITEM, holder.parts[0], "a", "holder.parts[0]['a']")  # type: ignore[attr-defined]
    reach = Reach(Reads(())).walk([])
    reach.guard_the_way([place, place])
    assert [asked.label for asked in reach.asked] == ["holder.parts[0]", "holder.parts"]


def test_nothing_is_kept_of_the_run() -> None:
    made: list[Any] = []

    def program() -> float:
        made.append(weakref.ref(holder := Holder(a=1.0)))
        return float(holder.a)

    reach = reached(program)
    gc.collect()
    assert made[0]() is None and any(isinstance(table, Table) for table in reach.tables)


def test_a_store_past_a_class_blinds_to_its_own_objects_alone() -> None:
    class Stores(Holder):
        def put(self, value: float) -> None:
            super().__setattr__("b", value)

    stores, other = Stores(a=1.0, unread=2.0), Holder(a=1.0, unread=2.0)
    found = labels(reached(lambda s, o: (s.put(3.0), s.a, o.a), stores, other))
    assert sum(label.endswith(".unread") for label in found) == 1


def test_data_of_a_class_of_torchs_own_that_no_object_is_of_is_not_asked_by_computed_names() -> None:
    def asks(holder: Any, x: Any) -> Any:
        return getattr(holder, "a" + ""), isinstance(x, DTensor)

    found = labels(reached(asks, Holder(a=1.0), 1.0))
    assert not any(label.startswith("DTensor._op_dispatcher") for label in found)


def test_what_dies_while_a_program_runs_is_no_part_of_it() -> None:
    alive, others = weakref.WeakValueDictionary(), [Holder(a=1.0)]
    alive["first"] = others[0]
    with Reads([]) as reads:
        others.clear()  # whose callback removes it
    reach = Reach(reads).walk([])
    assert not alive and not reach.functions and not reach.references

"""Dicts, namespaces and records of settings, read in every way that does not name the key in the code."""

from __future__ import annotations

import collections
import copy
import functools
import json
import operator
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support import assert_same, jit
from support.follows import Story, folded_by_name, follows, named

Tensor = torch.Tensor


def _loop_by_name(d: Any, x: Tensor) -> Tensor:
    for name in ("ga" + "in", "bi" + "as"):
        x = x * d[name] - 1
    return x


def _matched(d: Any, x: Tensor) -> Tensor:
    match d:
        case {"gain": gain, "bias": bias}:
            return x * gain - bias
    return x


READS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "items": lambda d, x: folded_by_name(x, d.items()),
    "values": lambda d, x: functools.reduce(lambda a, b: a * b - 1, d.values(), x),
    "keys": lambda d, x: folded_by_name(x, ((name, d[name]) for name in d.keys())),  # noqa: SIM118
    "iteration": lambda d, x: folded_by_name(x, ((name, d[name]) for name in d)),
    "reversed": lambda d, x: folded_by_name(x, ((name, d[name]) for name in reversed(d))),
    "a name that is put together": _loop_by_name,
    "keywords": lambda d, x: named(x, **d),
    "a display": lambda d, x: folded_by_name(x, {"first": 3.0, **d}.items()),
    "a union": lambda d, x: folded_by_name(x, ({"first": 3.0} | d).items()),
    "a comprehension": lambda d, x: folded_by_name(x, {name: value + 1 for name, value in d.items()}.items()),
    "a copy": lambda d, x: folded_by_name(x, d.copy().items()),
    "copy.copy": lambda d, x: folded_by_name(x, copy.copy(d).items()),
    "copy.deepcopy": lambda d, x: folded_by_name(x, copy.deepcopy(d).items()),
    "dict of it": lambda d, x: folded_by_name(x, dict(d).items()),
    "list of items": lambda d, x: folded_by_name(x, list(d.items())),
    "sorted": lambda d, x: folded_by_name(x, sorted(d.items())),
    "get": lambda d, x: x * d.get("ga" + "in") - d.get("bi" + "as", 7.0),
    "next of an iterator": lambda d, x: x * next(iter(d.values())) - 1,
    "sum": lambda d, x: x * sum(d.values()) - 1,
    "max by value": lambda d, x: x - len(max(d, key=d.get)) * max(d.values()),
    "zip": lambda d, x: folded_by_name(x, zip(d, d.values(), strict=True)),
    "unpacked": lambda d, x: folded_by_name(x, [*d.items()]),
    "itemgetter": lambda d, x: x * operator.itemgetter("gain")(d) - 1,
    "getitem": lambda d, x: x * operator.getitem(d, "gain") - 1,
    "dunder getitem": lambda d, x: x * d.__getitem__("gain") - 1,
    "map": lambda d, x: functools.reduce(lambda a, b: a * b - 1, map(d.get, ("gain", "bias")), x),
    "match": _matched,
    "equality": lambda d, x: x - 1 if d == {"gain": 2.0, "bias": 1.0} else x * 5,
    "made from it": lambda d, x: folded_by_name(x, vars(types.SimpleNamespace(**d)).items()),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("where", ["closure", "attribute", "nested"])
@follows()
def test_a_dict(read: Callable[[Any, Tensor], Tensor], where: str) -> Story:
    settings = {"gain": 2.0, "bias": 1.0}
    holder = types.SimpleNamespace(settings=settings, all={"inner": [settings]})
    if where == "closure":
        yield lambda x: read(settings, x)
    elif where == "attribute":
        yield lambda x: read(holder.settings, x)
    else:
        yield lambda x: read(holder.all["inner"][0], x)
    settings["gain"] = 3.0
    yield
    settings["bias"] = 4.0
    yield
    settings["gain"], settings["bias"] = 2.0, 1.0
    yield


C_READS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "text": lambda d, x: x - sum(str(d).encode()),
    "format": lambda d, x: x * float("{gain}".format(**d)) - 1,
    "format_map": lambda d, x: x * float("{gain}".format_map(d)) - 1,
    "percent": lambda d, x: x * float("%(gain)s" % d) - 1,  # noqa: UP031
    "json": lambda d, x: folded_by_name(x, json.loads(json.dumps(d)).items()),
    "pickle": lambda d, x: folded_by_name(x, pickle.loads(pickle.dumps(d)).items()),
    "eval": lambda d, x: x * eval("gain - bias / 4", {}, d),
}


@pytest.mark.parametrize("read", C_READS.values(), ids=C_READS)
@follows(may_refuse=True)
def test_a_dict_read_as_a_whole_by_compiled_code(read: Callable[[Any, Tensor], Tensor]) -> Story:
    settings = {"gain": 2.0, "bias": 1.0}
    yield lambda x: read(settings, x)
    settings["gain"] = 3.0
    yield


@pytest.mark.parametrize(
    "make",
    [dict, collections.OrderedDict, lambda d: collections.defaultdict(float, d)],
    ids=["dict", "ordered", "default"],
)
@follows()
def test_the_order_of_a_dict(make: Any) -> Story:
    settings = make({"gain": 2.0, "bias": 3.0})
    yield lambda x: folded_by_name(x, settings.items())
    settings["gain"] = settings.pop("gain")
    yield


@follows()
def test_a_dict_that_is_rebound_with_equal_and_then_other_contents() -> Story:
    holder = types.SimpleNamespace(settings={"gain": 2.0})
    yield lambda x: folded_by_name(x, holder.settings.items())
    old, holder.settings = holder.settings, {"gain": 2.0}
    yield
    holder.settings["gain"] = 5.0
    old["gain"] = 9.0
    yield
    holder.settings = old
    yield


@follows()
def test_a_dict_emptied_and_filled_again() -> Story:
    settings = {"gain": 2.0, "bias": 1.0}
    yield lambda x: folded_by_name(x, settings.items()) - len(settings)
    settings.clear()
    yield
    settings.update(bias=3.0, gain=2.0)
    yield


@follows()
def test_a_dict_of_dicts_walked_by_a_recursive_function() -> Story:
    tree = {"a": {"b": {"gain": 2.0}, "c": 3.0}, "d": [1.0, {"e": 4.0}]}

    def walk(x: Tensor, value: Any) -> Tensor:
        if isinstance(value, dict):
            for name in value:
                x = walk(x, value[name]) - len(name)
            return x
        if isinstance(value, list):
            for item in value:
                x = walk(x, item)
            return x - len(value)
        return x * value

    yield lambda x: walk(x, tree)
    tree["a"]["b"]["gain"] = 5.0  # type: ignore[index, call-overload]
    yield
    tree["d"][1]["e"] = 6.0  # type: ignore[index]
    yield
    tree["a"]["c"] = {"f": 2.0}  # type: ignore[index, call-overload]
    yield


class Config:
    def __init__(self, gain: float = 2.0) -> None:
        self.gain = gain


@follows()
def test_a_dict_whose_keys_are_objects() -> Story:
    first, second = Config(), Config(gain=3.0)
    rates = {id(first): 2.0, id(second): 5.0}
    by_class = {Config: 2.0, int: 3.0}
    pairs = {(1, "a"): 2.0, (2, "b"): 3.0}

    def use(x: Tensor) -> Tensor:
        for config in (first, second):
            x = x * rates[id(config)] - config.gain
        return x * by_class[type(first)] - pairs[1, "a"] + pairs[2, "b"] * 2

    yield use
    rates[id(second)] = 7.0
    yield
    by_class[Config] = 4.0
    yield
    pairs[2, "b"] = 6.0
    yield


@follows()
def test_views_of_a_dict_that_are_kept() -> Story:
    settings = {"gain": 2.0, "bias": 1.0}
    holder = types.SimpleNamespace(items=settings.items(), values=settings.values(), names=settings.keys())

    def use(x: Tensor) -> Tensor:
        for value in holder.values:
            x = x * value - len(holder.names)
        return folded_by_name(x, holder.items) if "more" in holder.names else x

    yield use
    settings["gain"] = 3.0
    yield
    settings["more"] = 5.0
    yield


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("what", ["value", "key"])
def test_what_is_equal_but_not_the_same_in_a_dict_that_keeps_changing(kind: Any, what: str) -> None:
    table: Any = kind(other=0)
    table[1] = 1
    total: list[int] = []

    def program(x: Tensor) -> Any:
        return [x * value - len(str(key)) for key, value in table.items() if key != "other"]

    jitted = jit(program)
    x = torch.ones(2, dtype=torch.int64)
    for call in range(9):
        # It changes, and nothing that counts does: from the second time on it is compared by its entries.
        for _ in range(3):
            table["more"] = total
            del table["more"]
            assert_same(jitted(x), program(x))
        if call == 5:
            del table[1]
            table[True if what == "key" else 1] = 1 if what == "key" else 1.0


@follows()
@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, lambda d: collections.defaultdict(torch.Tensor, d)])
def test_a_dict_with_state_that_is_cleared(kind: Any) -> Story:
    table = kind({"gain": torch.full((3,), 3.0)})
    yield lambda x: x * 2 - len(table) - sum(table.get(name, x) for name in ("gain",))
    table.clear()
    yield


@follows()
def test_what_makes_the_entries_of_a_defaultdict() -> Story:
    holder = types.SimpleNamespace(table=collections.defaultdict(lambda: 3.0, gain=1.0))
    yield lambda x: x * holder.table["gain"] - holder.table.default_factory()
    holder.table.default_factory = lambda: 5.0
    yield
    holder.table = collections.defaultdict(lambda: 7.0, gain=1.0)
    yield


class Recent(collections.OrderedDict):  # type: ignore[type-arg]
    pass


@follows()
@pytest.mark.parametrize("kind", [collections.OrderedDict, Recent])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_the_order_of_an_ordered_dict(kind: Any, is_replaced: bool) -> Story:
    """It is kept beside the entries, and to move one is no new version."""
    holder = types.SimpleNamespace(table=kind(a=2.0, b=5.0, c=7.0))
    yield lambda x: folded_by_name(x, holder.table.items())
    holder.table.move_to_end("a")
    yield
    if is_replaced:
        holder.table = kind(holder.table)
        yield
    holder.table.move_to_end("c", last=False)
    yield


def test_a_program_that_keeps_the_latest_in_an_ordered_dict() -> None:
    """A replay left the order as it was, so that another entry was the oldest later."""
    mine, theirs = collections.OrderedDict(), collections.OrderedDict()  # type: ignore[var-annotated]

    def program(kept: Any, x: Tensor) -> Tensor:
        size = len(x)
        if size in kept:
            kept.move_to_end(size)
        else:
            kept[size] = torch.arange(float(size))
            if len(kept) > 3:
                kept.popitem(last=False)
        return x - kept[size]

    jitted = jit(lambda x: program(mine, x), on_refusal="eager")
    for call in range(24):
        x = torch.ones(2 + call * call % 3)
        assert_same(jitted(x), program(theirs, x))
        assert list(mine) == list(theirs)


class Defaults(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> float:
        return 0.25 * len(key)


@follows()
@pytest.mark.parametrize(
    "kind", [dict, Defaults, collections.defaultdict, collections.OrderedDict, collections.Counter]
)
def test_an_empty_dict_of_any_class_that_is_filled_at_once(kind: Any) -> Story:
    table = kind()
    yield lambda x: x * 2 - len(table)
    table.update(gain=3)
    yield


class Rated:
    """A mixin that reads what the object has beside its items."""

    rate: float

    def scale(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.rate - 1


class RatedTable(dict, Rated):  # type: ignore[type-arg]
    pass


class RatedList(list, Rated):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("kind", [RatedTable, RatedList])
@follows()
def test_an_attribute_of_a_container_with_a_mixin(kind: Any) -> Story:
    holder = kind()
    holder.rate = 2.0
    yield lambda x: holder.scale(x) - len(holder)
    holder.rate = 5.0
    yield

"""Dicts, namespaces and records of settings, read in every way that does not name the key in the code."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import functools
import importlib
import inspect
import json
import operator
import pickle
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from support.follows import Story, follows

Tensor = torch.Tensor
GAIN, BIAS = 2.0, 1.0


def folded(x: Tensor, pairs: Any) -> Tensor:
    """All the numbers in turn; their order matters, and so do the names."""
    for name, value in pairs:
        x = x * value - len(name)
    return x


def named(x: Tensor, *, gain: float = 1.0, bias: float = 0.0, **others: float) -> Tensor:
    return folded(x * gain - bias, others.items())


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
    "items": lambda d, x: folded(x, d.items()),
    "values": lambda d, x: functools.reduce(lambda a, b: a * b - 1, d.values(), x),
    "keys": lambda d, x: folded(x, ((name, d[name]) for name in d.keys())),  # noqa: SIM118
    "iteration": lambda d, x: folded(x, ((name, d[name]) for name in d)),
    "reversed": lambda d, x: folded(x, ((name, d[name]) for name in reversed(d))),
    "a name that is put together": _loop_by_name,
    "keywords": lambda d, x: named(x, **d),
    "a display": lambda d, x: folded(x, {"first": 3.0, **d}.items()),
    "a union": lambda d, x: folded(x, ({"first": 3.0} | d).items()),
    "a comprehension": lambda d, x: folded(x, {name: value + 1 for name, value in d.items()}.items()),
    "a copy": lambda d, x: folded(x, d.copy().items()),
    "copy.copy": lambda d, x: folded(x, copy.copy(d).items()),
    "copy.deepcopy": lambda d, x: folded(x, copy.deepcopy(d).items()),
    "dict of it": lambda d, x: folded(x, dict(d).items()),
    "list of items": lambda d, x: folded(x, list(d.items())),
    "sorted": lambda d, x: folded(x, sorted(d.items())),
    "get": lambda d, x: x * d.get("ga" + "in") - d.get("bi" + "as", 7.0),
    "next of an iterator": lambda d, x: x * next(iter(d.values())) - 1,
    "sum": lambda d, x: x * sum(d.values()) - 1,
    "max by value": lambda d, x: x - len(max(d, key=d.get)) * max(d.values()),
    "zip": lambda d, x: folded(x, zip(d, d.values(), strict=True)),
    "unpacked": lambda d, x: folded(x, [*d.items()]),
    "itemgetter": lambda d, x: x * operator.itemgetter("gain")(d) - 1,
    "getitem": lambda d, x: x * operator.getitem(d, "gain") - 1,
    "dunder getitem": lambda d, x: x * d.__getitem__("gain") - 1,
    "map": lambda d, x: functools.reduce(lambda a, b: a * b - 1, map(d.get, ("gain", "bias")), x),
    "match": _matched,
    "equality": lambda d, x: x - 1 if d == {"gain": 2.0, "bias": 1.0} else x * 5,
    "made from it": lambda d, x: folded(x, vars(types.SimpleNamespace(**d)).items()),
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
    "json": lambda d, x: folded(x, json.loads(json.dumps(d)).items()),
    "pickle": lambda d, x: folded(x, pickle.loads(pickle.dumps(d)).items()),
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
    yield lambda x: folded(x, settings.items())
    settings["gain"] = settings.pop("gain")
    yield


@follows()
def test_a_dict_that_is_rebound_with_equal_and_then_other_contents() -> Story:
    holder = types.SimpleNamespace(settings={"gain": 2.0})
    yield lambda x: folded(x, holder.settings.items())
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
    yield lambda x: folded(x, settings.items()) - len(settings)
    settings.clear()
    yield
    settings.update(bias=3.0, gain=2.0)
    yield


@dataclasses.dataclass
class Config:
    gain: float = 2.0
    bias: float = 1.0


def _fields(c: Any, x: Tensor) -> Tensor:
    return folded(x, ((field.name, getattr(c, field.name)) for field in dataclasses.fields(c)))


NAMESPACES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "vars": lambda c, x: folded(x, vars(c).items()),
    "vars by name": lambda c, x: x * vars(c)["ga" + "in"] - vars(c)["bias"],
    "dunder dict": lambda c, x: folded(x, c.__dict__.items()),
    "keywords of vars": lambda c, x: named(x, **vars(c)),
    "getattr of a formatted name": lambda c, x: x * getattr(c, f"{'ga'}in") - getattr(c, f"bi{'as'}"),
    "attrgetter": lambda c, x: x * operator.attrgetter("gain")(c) - operator.attrgetter("bias")(c),
    "getattr_static": lambda c, x: x * inspect.getattr_static(c, "gain") - 1,
    "object.__getattribute__": lambda c, x: x * object.__getattribute__(c, "gain") - 1,
    "its own __getattribute__": lambda c, x: x * c.__getattribute__("gain") - 1,
    "copied": lambda c, x: x * copy.copy(c).gain - copy.deepcopy(c).bias,
    "dir": lambda c, x: folded(x, ((n, getattr(c, n)) for n in dir(c) if n[:1] != "_")),
    "equality": lambda c, x: x * (2 if c == type(c)(gain=2.0, bias=1.0) else 5) - 1,
}


@pytest.mark.parametrize("read", NAMESPACES.values(), ids=NAMESPACES)
@pytest.mark.parametrize("make", [Config, types.SimpleNamespace, argparse.Namespace])
@follows()
def test_a_namespace(read: Callable[[Any, Tensor], Tensor], make: Any) -> Story:
    config = make(gain=2.0, bias=1.0)
    yield lambda x: read(config, x)
    config.gain = 3.0
    yield
    config.bias = 4.0
    yield
    config.gain, config.bias = 2.0, 1.0
    yield


RECORDS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "asdict": lambda c, x: folded(x, dataclasses.asdict(c).items()),
    "astuple": lambda c, x: functools.reduce(lambda a, b: a * b - 1, dataclasses.astuple(c), x),
    "fields": _fields,
    "replace": lambda c, x: folded(x, vars(dataclasses.replace(c, bias=5.0)).items()),
}


@pytest.mark.parametrize("read", RECORDS.values(), ids=RECORDS)
@follows()
def test_a_dataclass(read: Callable[[Any, Tensor], Tensor]) -> Story:
    config = Config()
    yield lambda x: read(config, x)
    config.gain = 3.0
    yield


@follows()
def test_a_dataclass_with_dataclasses_and_lists_inside() -> Story:
    @dataclasses.dataclass
    class Whole:
        part: Config
        more: list[float]

    whole = Whole(Config(), [3.0, 2.0])

    def use(x: Tensor) -> Tensor:
        found = dataclasses.asdict(whole)
        return folded(x, found["part"].items()) * found["more"][0] - found["more"][-1]

    yield use
    whole.part.gain = 3.0
    yield
    whole.more[0] = 5.0
    yield
    whole.more.append(4.0)
    yield


@pytest.mark.parametrize("how", ["globals", "vars", "getattr", "attrgetter", "import"])
def test_a_global_by_a_name_that_is_put_together(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = types.ModuleType("settings_of_a_test")
    here.GAIN = 2.0  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "settings_of_a_test", here)
    monkeypatch.setitem(globals(), "GAIN", 2.0)
    reads: dict[str, Callable[[], float]] = {
        "globals": lambda: globals()["GA" + "IN"],
        "vars": lambda: vars(here)["GA" + "IN"],
        "getattr": lambda: getattr(here, "GA" + "IN"),
        "attrgetter": lambda: operator.attrgetter("GAIN")(here),
        "import": lambda: importlib.import_module("settings_of_" + "a_test").GAIN,
    }

    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: x * reads[how]() - 1
        for value in (3.0, 2.0):
            monkeypatch.setitem(globals(), "GAIN", value)
            here.GAIN = value  # type: ignore[attr-defined]
            yield

    story()


class AttributeDict(dict):  # type: ignore[type-arg]
    """As many configuration libraries have it: its items are its attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Forwarding:
    """Keeps its attributes elsewhere."""

    def __init__(self, **values: float) -> None:
        object.__setattr__(self, "_values", dict(values))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self._values[name] = value


@pytest.mark.parametrize("make", [AttributeDict, Forwarding])
@follows()
def test_attributes_that_are_made_up_from_items(make: Any) -> Story:
    config = make(gain=2.0, bias=1.0)
    yield lambda x: x * config.gain - config.bias
    config.gain = 3.0
    yield
    config.bias = 4.0
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
        return folded(x, holder.items) if "more" in holder.names else x

    yield use
    settings["gain"] = 3.0
    yield
    settings["more"] = 5.0
    yield

"""Namespaces, dataclasses and modules of settings, read in every way that does not name the attribute in the code."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import importlib
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from support.follows import Story, folded_by_name, follows, named

Tensor = torch.Tensor
GAIN = 2.0


@dataclasses.dataclass
class Config:
    gain: float = 2.0
    bias: float = 1.0


def _fields(c: Any, x: Tensor) -> Tensor:
    return folded_by_name(x, ((field.name, getattr(c, field.name)) for field in dataclasses.fields(c)))


NAMESPACES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "vars": lambda c, x: folded_by_name(x, vars(c).items()),
    "vars by name": lambda c, x: x * vars(c)["ga" + "in"] - vars(c)["bias"],
    "dunder dict": lambda c, x: folded_by_name(x, c.__dict__.items()),
    "keywords of vars": lambda c, x: named(x, **vars(c)),
    "getattr of a formatted name": lambda c, x: x * getattr(c, f"{'ga'}in") - getattr(c, f"bi{'as'}"),
    "attrgetter": lambda c, x: x * operator.attrgetter("gain")(c) - operator.attrgetter("bias")(c),
    "getattr_static": lambda c, x: x * inspect.getattr_static(c, "gain") - 1,
    "object.__getattribute__": lambda c, x: x * object.__getattribute__(c, "gain") - 1,
    "its own __getattribute__": lambda c, x: x * c.__getattribute__("gain") - 1,
    "copied": lambda c, x: x * copy.copy(c).gain - copy.deepcopy(c).bias,
    "dir": lambda c, x: folded_by_name(x, ((n, getattr(c, n)) for n in dir(c) if n[:1] != "_")),
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
    "asdict": lambda c, x: folded_by_name(x, dataclasses.asdict(c).items()),
    "astuple": lambda c, x: functools.reduce(lambda a, b: a * b - 1, dataclasses.astuple(c), x),
    "fields": _fields,
    "replace": lambda c, x: folded_by_name(x, vars(dataclasses.replace(c, bias=5.0)).items()),
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
        return folded_by_name(x, found["part"].items()) * found["more"][0] - found["more"][-1]

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


class Behind:
    """Keeps its attributes elsewhere, and finds that behind the back of its class."""

    def __init__(self, **values: float) -> None:
        object.__setattr__(self, "_values", dict(values))

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        if name not in values:
            raise AttributeError(name)
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_values")[name] = value


class Renamed:
    """Has other names for its attributes, as configurations of Transformers do."""

    names: ClassVar = {"gain": "_gain", "bias": "_bias"}

    def __init__(self, **values: float) -> None:
        vars(self).update({self.names[name]: value for name, value in values.items()})

    def __getattribute__(self, name: str) -> Any:
        if name != "names" and name in super().__getattribute__("names"):
            name = super().__getattribute__("names")[name]
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        vars(self)[self.names[name]] = value


class Computed:
    """Has properties that look behind the back of its class."""

    def __init__(self, **values: float) -> None:
        vars(self).update({f"_{name}": value for name, value in values.items()})

    @property
    def gain(self) -> Any:
        return super().__getattribute__("_gain")

    @gain.setter
    def gain(self, value: float) -> None:
        vars(self)["_gain"] = value

    @property
    def bias(self) -> Any:
        return super().__getattribute__("_bias")

    @bias.setter
    def bias(self, value: float) -> None:
        vars(self)["_bias"] = value


@pytest.mark.parametrize("make", [AttributeDict, Forwarding, Behind, Renamed, Computed])
@follows()
def test_attributes_that_are_made_up_from_items(make: Any) -> Story:
    config = make(gain=2.0, bias=1.0)
    yield lambda x: x * config.gain - config.bias
    config.gain = 3.0
    yield
    config.bias = 4.0
    yield

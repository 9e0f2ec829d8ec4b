"""What was not there when a program was recorded, and is there later; and the other way round."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from support.follows import Story, follows

Tensor = torch.Tensor
_DEFAULT = 1.5


class Plain:
    pass


class Slotted:
    __slots__ = ("scale",)


def _caught(o: Any) -> float:
    try:
        return o.scale
    except AttributeError:
        return _DEFAULT


def _suppressed(o: Any) -> float:
    found = _DEFAULT
    with contextlib.suppress(AttributeError):
        found = o.scale
    return found


ATTRIBUTES: dict[str, Callable[[Any], float]] = {
    "getattr with a default": lambda o: getattr(o, "scale", _DEFAULT),
    "hasattr": lambda o: o.scale if hasattr(o, "scale") else _DEFAULT,
    "exception": _caught,
    "suppressed exception": _suppressed,
    "getattr of a formatted name": lambda o: getattr(o, f"sc{'ale'}", _DEFAULT),
}


@pytest.mark.parametrize("read", ATTRIBUTES.values(), ids=ATTRIBUTES)
@pytest.mark.parametrize("make", [Plain, Slotted, types.SimpleNamespace, nn.Module])
@follows()
def test_an_attribute_that_appears(read: Callable[[Any], float], make: Any) -> Story:
    owner = make()
    yield lambda x: x * read(owner) - 1
    owner.scale = 3.0
    yield
    del owner.scale
    yield
    owner.scale = 4.0
    yield


@pytest.mark.parametrize("read", ATTRIBUTES.values(), ids=ATTRIBUTES)
@follows()
def test_an_attribute_that_appears_on_a_class(read: Callable[[Any], float]) -> Story:
    class Base:
        pass

    class Heir(Base):
        pass

    owner = Heir()
    yield lambda x: x * read(owner) - 1
    Base.scale = 3.0  # type: ignore[attr-defined]
    yield
    Heir.scale = 4.0  # type: ignore[attr-defined]
    yield
    owner.scale = 5.0  # type: ignore[attr-defined]
    yield
    del owner.scale, Heir.scale, Base.scale  # type: ignore[attr-defined]
    yield


@follows()
def test_a_getattr_that_appears_on_a_class() -> Story:
    class Owner:
        pass

    owner = Owner()
    yield lambda x: x * getattr(owner, "scale", _DEFAULT) - 1
    Owner.__getattr__ = lambda self, name: 3.0  # type: ignore[attr-defined]
    yield


@follows()
def test_an_attribute_of_an_instance_that_hides_a_method() -> Story:
    class Owner:
        def scaled(self, x: Tensor) -> Tensor:
            return x * 2 - 1

    owner = Owner()
    yield lambda x: owner.scaled(x) * 2
    owner.scaled = lambda x: x - 5  # type: ignore[method-assign]
    yield
    del owner.scaled
    yield


def _entry(d: Any) -> float:
    try:
        return d["scale"]
    except KeyError:
        return _DEFAULT


ENTRIES: dict[str, Callable[[Any], float]] = {
    "get": lambda d: d.get("scale") or _DEFAULT,
    "get with a default": lambda d: d.get("scale", _DEFAULT),
    "membership": lambda d: 3.0 if "scale" in d else _DEFAULT,
    "no membership": lambda d: _DEFAULT if "scale" not in d else 3.0,
    "exception": _entry,
    "length": lambda d: 2.0 + len(d),
    "truth": lambda d: 2.0 if d else 3.0,
    "iteration": lambda d: sum(len(name) * value for name, value in d.items()) + 2.0,
    "comparison": lambda d: 2.0 if d == {} else 3.0,
    "first": lambda d: next(iter(d.values()), _DEFAULT),
    "max": lambda d: max(d.values(), default=_DEFAULT),
    "copy": lambda d: dict(d, other=2.0).get("scale", _DEFAULT),
}


@pytest.mark.parametrize("read", ENTRIES.values(), ids=ENTRIES)
@pytest.mark.parametrize("make", [dict, collections.OrderedDict, collections.UserDict])
@follows()
def test_an_entry_of_a_dict_that_appears(read: Callable[[Any], float], make: Any) -> Story:
    options = make()
    yield lambda x: x * read(options) - 1
    options["scale"] = 3.0
    yield
    del options["scale"]
    yield
    options["other"] = 4.0
    yield


@follows()
def test_a_default_made_by_a_dict() -> Story:
    class Defaulting(dict):  # type: ignore[type-arg]
        default = 2.0

        def __missing__(self, name: str) -> float:
            return self.default + len(name)

    options = Defaulting()
    yield lambda x: x * options["scale"] - 1
    options.default = 3.0
    yield
    options["scale"] = 4.0
    yield


LISTS: dict[str, Callable[[list[float], Tensor], Tensor]] = {
    "iteration": lambda a, x: x * (2.0 + sum(a)) - 1,
    "truth": lambda a, x: x * a[-1] if a else x - 1,
    "length": lambda a, x: x * (len(a) + 2) - 1,
    "last or default": lambda a, x: x * (a[-1:] or [1.5])[0] - 1,
    "joined": lambda a, x: x * len([*a, 1.0, *a]) - 1,
    "comparison": lambda a, x: x * 2 if a == [] else x - 1,
}


@pytest.mark.parametrize("read", LISTS.values(), ids=LISTS)
@follows()
def test_a_list_that_was_empty(read: Callable[[list[float], Tensor], Tensor]) -> Story:
    values: list[float] = []
    yield lambda x: read(values, x)
    values.append(3.0)
    yield
    values.clear()
    yield
    values.extend([4.0, 5.0])
    yield

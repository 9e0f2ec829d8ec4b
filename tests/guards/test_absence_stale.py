"""What was not there when a program was recorded, and is there later; and the other way round."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import os
import sys
import threading
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


class Owner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)


def _sum(tensors: Any, x: Tensor) -> Tensor:
    for tensor in tensors:
        x = x * 2 - tensor.sum()
    return x


MODULES: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "parameters": (lambda m, x: _sum(m.parameters(), x), "parameter"),
    "named parameters": (lambda m, x: _sum((p * len(n) for n, p in m.named_parameters()), x), "parameter"),
    "state dict": (lambda m, x: _sum(m.state_dict().values(), x), "parameter"),
    "state dict of buffers": (lambda m, x: _sum(m.state_dict().values(), x), "buffer"),
    "number of parameters": (lambda m, x: x * len(list(m.parameters())) - 1, "parameter"),
    "buffers": (lambda m, x: _sum(m.buffers(), x), "buffer"),
    "named buffers": (lambda m, x: _sum((b * len(n) for n, b in m.named_buffers()), x), "buffer"),
    "number of buffers": (lambda m, x: x * (len(list(m.buffers())) + 2) - 1, "buffer"),
    "children": (lambda m, x: x * (len(list(m.children())) + 2) - 1, "child"),
    "modules": (lambda m, x: _sum((p for k in m.modules() for p in k.parameters(recurse=False)), x), "child"),
    "named modules": (lambda m, x: x * len(dict(m.named_modules())) - 1, "child"),
    "get_parameter": (lambda m, x: x * 2 if m._parameters.get("extra") is None else x - m.extra, "parameter"),
    "get_buffer": (lambda m, x: x * 2 if getattr(m, "extra", None) is None else x - m.extra, "buffer"),
    "get_submodule": (lambda m, x: m.extra(x) if hasattr(m, "extra") else x - 1, "child"),
}


@pytest.mark.parametrize(("read", "kind"), MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("where", ["itself", "inner"])
@follows()
def test_what_appears_in_a_module(read: Callable[[nn.Module, Tensor], Tensor], kind: str, where: str) -> Story:
    owner = Owner()
    target = owner if where == "itself" else owner.inner
    looked_at = owner if where == "itself" or kind != "child" or "get" not in kind else owner.inner
    if where == "inner" and read in (MODULES["children"][0], *(MODULES[f"get_{k}"][0] for k in GETS)):
        looked_at = owner.inner  # these do not look further down
    yield lambda x: read(looked_at, x)
    if kind == "parameter":
        target.register_parameter("extra", nn.Parameter(torch.full((3,), 5.0)))
    elif kind == "buffer":
        target.register_buffer("extra", torch.full((3,), 5.0))
    else:
        target.add_module("extra", nn.Linear(3, 3))
    yield
    del target.extra
    yield


GETS = ("parameter", "buffer", "submodule")


@follows()
def test_a_parameter_registered_as_none() -> Story:
    model = nn.Linear(3, 3, bias=False)
    yield lambda x: x @ model.weight - (2 if model.bias is None else model.bias)
    model.bias = nn.Parameter(torch.ones(3))
    yield
    model.register_parameter("bias", None)
    yield


@pytest.mark.parametrize("table", ["_forward_hooks", "_forward_pre_hooks", "_backward_hooks"])
@follows()
def test_a_program_that_asks_for_hooks(table: str) -> Story:
    model = nn.Linear(3, 3)
    yield lambda x: x * 2 if getattr(model, table) else x - 1
    getattr(model, table)[0] = lambda *args: None
    yield


def test_a_global_that_appears_and_hides_a_builtin(monkeypatch: pytest.MonkeyPatch) -> None:
    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: x * max(2, 3) - 1
        monkeypatch.setitem(globals(), "max", lambda a, b: a - b)
        yield
        monkeypatch.delitem(globals(), "max")
        yield

    story()


@pytest.mark.parametrize("how", ["globals", "exception", "module", "hasattr"])
def test_a_global_that_appears(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = types.ModuleType("module_of_absence")
    monkeypatch.setitem(sys.modules, "module_of_absence", here)

    def named() -> float:
        try:
            return APPEARING  # type: ignore[name-defined,no-any-return]
        except NameError:
            return _DEFAULT

    reads: dict[str, Callable[[], float]] = {
        "globals": lambda: globals().get("APPEARING", _DEFAULT),
        "exception": named,
        "module": lambda: getattr(here, "APPEARING", _DEFAULT),
        "hasattr": lambda: here.APPEARING if hasattr(here, "APPEARING") else _DEFAULT,
    }

    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: x * reads[how]() - 1
        monkeypatch.setitem(globals(), "APPEARING", 3.0)
        here.APPEARING = 3.0  # type: ignore[attr-defined]
        yield
        monkeypatch.delitem(globals(), "APPEARING")
        del here.APPEARING  # type: ignore[attr-defined]
        yield

    story()


@follows()
def test_a_cell_that_was_empty() -> Story:
    if False:
        scale = 0.0

    def use(x: Tensor) -> Tensor:
        try:
            return x * scale - 1
        except NameError:
            return x - 5

    yield use
    scale = 3.0
    yield
    del scale
    yield


@pytest.mark.parametrize("how", ["get", "membership", "getenv", "item"])
def test_a_variable_of_the_environment(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "A_GAIN_OF_A_TEST"
    reads: dict[str, Callable[[], float]] = {
        "get": lambda: float(os.environ.get(name, "1.5")),
        "membership": lambda: 3.0 if name in os.environ else 1.5,
        "getenv": lambda: float(os.getenv(name) or 1.5),
        "item": lambda: float(os.environ[name]),
    }
    if how == "item":
        monkeypatch.setenv(name, "2.0")

    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: x * reads[how]() - 1
        monkeypatch.setenv(name, "3.0")
        yield
        monkeypatch.setenv(name, "4.0") if how == "item" else monkeypatch.delenv(name)
        yield

    story()


def test_a_context_variable_that_was_not_set() -> None:
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale")

    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: x * scale.get(1.5) - 1
        token = scale.set(3.0)
        yield
        scale.set(4.0)
        yield
        scale.reset(token)
        yield

    story()


@follows()
def test_an_attribute_of_a_thread_local_that_appears() -> Story:
    local = threading.local()
    yield lambda x: x * getattr(local, "scale", _DEFAULT) - 1
    local.scale = 3.0
    yield
    del local.scale
    yield

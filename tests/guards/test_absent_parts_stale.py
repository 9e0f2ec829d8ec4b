"""Parts of modules, globals, cells and variables that were not there when a program was recorded, and are there later."""

from __future__ import annotations

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

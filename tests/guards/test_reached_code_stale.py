"""Code that is reached in a roundabout way: hooks of parameters, imports inside, threads, contexts, libraries."""

from __future__ import annotations

import contextvars
import gc
import importlib
import math
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from support.follows import Story, follows

Tensor = torch.Tensor
HOOKS: dict[str, Callable[[Tensor, Callable[[Any], Any]], Any]] = {
    "gradient": lambda p, f: p.register_hook(f),
    "after accumulation": lambda p, f: p.register_post_accumulate_grad_hook(lambda q: _changed(q.grad, f)),
}


def _changed(gradient: Any, change: Callable[[Any], Any]) -> None:
    gradient.copy_(change(gradient))


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
@follows(grad=True)
def test_a_hook_of_a_parameter(register: Callable[[Tensor, Callable[[Any], Any]], Any]) -> Story:
    weight, scale = torch.ones(3, requires_grad=True), [2.0]

    def step(x: Tensor) -> Tensor:
        weight.grad = None
        (weight * x).sum().backward()
        return weight.grad * 2 - 1  # type: ignore[operator]

    handle = register(weight, lambda grad: grad * scale[0] - 1)
    yield step, lambda: weight.grad
    scale[0] = 3.0
    yield
    handle.remove()
    yield
    register(weight, lambda grad: grad - 5)
    yield


@pytest.mark.parametrize("how", ["import", "from", "import_module", "sys.modules"])
def test_a_module_imported_inside_of_a_function(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("settings_inside")
    exec("GAIN = 2.0\ndef scaled(x):\n    return x * GAIN - 1", vars(module))
    monkeypatch.setitem(sys.modules, "settings_inside", module)

    def program(x: Tensor) -> Tensor:
        if how == "import":
            import settings_inside

            return settings_inside.scaled(x) * settings_inside.GAIN
        if how == "from":
            from settings_inside import GAIN, scaled

            return scaled(x) * GAIN
        found = importlib.import_module("settings_inside") if how == "import_module" else sys.modules["settings_inside"]
        return found.scaled(x) * found.GAIN

    @follows(worlds=1)
    def story() -> Story:
        yield program
        module.GAIN = 3.0
        yield
        module.scaled = lambda x: x - 5
        yield
        other: Any = types.ModuleType("settings_inside")
        other.GAIN, other.scaled = 7.0, lambda x: x - 9
        monkeypatch.setitem(sys.modules, "settings_inside", other)
        yield

    story()


@follows()
def test_a_thread_local() -> Story:
    class Local(threading.local):
        scale = 2.0

    local, plain = Local(), threading.local()
    plain.shift = 1.0
    yield lambda x: x * local.scale - plain.shift
    local.scale = 3.0
    yield
    plain.shift = 4.0
    yield


def test_a_context_variable() -> None:
    scale: contextvars.ContextVar[float] = contextvars.ContextVar("scale", default=2.0)
    table: contextvars.ContextVar[dict[str, float]] = contextvars.ContextVar("table")
    table.set({"shift": 1.0})

    @follows(worlds=1)
    def story() -> Story:
        yield lambda x: x * scale.get() - table.get()["shift"]
        scale.set(3.0)
        yield
        table.get()["shift"] = 4.0
        yield
        table.set({"shift": 5.0})
        yield

    story()


LIBRARY = {
    "function of torch": (torch, "relu", lambda x: torch.relu(x) * 2 - 1, lambda x: x - 5),
    "functional": (F, "silu", lambda x: F.silu(x) * 2 - 1, lambda x: x - 5),
    "method of a tensor": (Tensor, "relu", lambda x: x.relu() * 2 - 1, lambda x: x - 5),
    "function of math": (math, "sin", lambda x: x * math.sin(1.0) - 1, lambda value: 5.0),
    "constant of math": (math, "tau", lambda x: x * math.tau - 1, 5.0),
    "class of torch": (torch.nn, "Tanh", lambda x: torch.nn.Tanh()(x) - 1, torch.nn.Sigmoid),
    "forward of a module of torch": (torch.nn.Tanh, "forward", lambda x: torch.nn.Tanh()(x) - 1, lambda self, x: x - 5),
}


@pytest.mark.parametrize(("owner", "name", "program", "other"), LIBRARY.values(), ids=LIBRARY)
def test_a_function_of_a_library_that_is_replaced(
    owner: Any, name: str, program: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @follows(worlds=1)
    def story() -> Story:
        yield program
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, other)
            yield
        yield

    story()


@follows()
def test_a_function_made_by_exec_with_globals_of_its_own() -> Story:
    table: dict[str, Any] = {"GAIN": 2.0}
    exec("def scaled(x):\n    return x * GAIN - 1", table)
    scaled = table["scaled"]
    yield lambda x: scaled(x) * 2
    table["GAIN"] = 3.0
    yield


@pytest.mark.parametrize("is_frozen", [False, True])
@follows(worlds=1)
def test_code_that_only_the_dispatcher_holds(is_frozen: bool) -> Story:
    library = torch.library.Library(f"treeplay_reached_{is_frozen}", "DEF")
    library.define("rated(Tensor x) -> Tensor")
    rates = {"now": 2.0}
    library.impl("rated", lambda x: x * rates["now"] - 1, "CompositeImplicitAutograd")
    rated = getattr(torch.ops, library.ns).rated
    if is_frozen:
        gc.freeze()  # which hides the function from `gc.get_referrers`
    yield lambda x: rated(x) * 2
    rates["now"] = 5.0
    yield
    library._destroy()

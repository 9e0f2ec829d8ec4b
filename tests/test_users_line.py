"""A refusal or warning about a library's line also names the user's own line that led there."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import treeplay
from support.installed import FILE, library
from treeplay.observe.lines import location_in
from treeplay.values.location import Location
from treeplay.values.refusal import Reason

_LIBRARY = library(
    """
def scale(x):
    return x * x.sum().item()

def fails(x):
    return x.reshape(int(x.sum() * 0) + 7)

class Scale(torch.nn.Module):
    def forward(self, x):
        return inner(x)

def inner(x):
    return scale(x)

def print_it(x):
    print(x)
    return x

class Leaver(torch.nn.Module):
    def forward(self, x):
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return x - 1
"""
)


def _line_of(function: Callable[..., Any], text: str) -> int:
    lines, first = inspect.getsourcelines(function)
    return first + next(at for at, line in enumerate(lines) if text in line)


def _refusal(program: Callable[..., Any]) -> treeplay.Refusal:
    jitted = treeplay.jit(program, lower="aten", on_refusal="raise")
    with pytest.raises(treeplay.Refusal) as caught:
        for _ in range(2):
            jitted(torch.ones(3))
    return caught.value


def _calls_a_function(x: torch.Tensor) -> torch.Tensor:
    x = x - 1
    return _LIBRARY["scale"](x)  # HERE


_scale = _LIBRARY["Scale"]()


def _calls_a_module(x: torch.Tensor) -> torch.Tensor:
    return 1 - _scale(x)  # HERE


def _prints_there(x: torch.Tensor) -> torch.Tensor:
    return _LIBRARY["print_it"](x)  # HERE


def _calls_in_a_backward(x: torch.Tensor) -> torch.Tensor:
    y = x.clone().requires_grad_()
    y.register_hook(_LIBRARY["scale"])
    (y * 2).sum().backward()  # HERE
    return x - 1


@pytest.mark.parametrize("program", [_calls_a_function, _calls_a_module, _prints_there, _calls_in_a_backward])
def test_a_refusal_in_a_library_names_the_users_line(program: Callable[..., Any]) -> None:
    refusal = _refusal(program)
    assert refusal.where.file == FILE and refusal.where.called_from is not None
    called_from = refusal.where.called_from
    assert (called_from.file, called_from.line) == (__file__, _line_of(program, "HERE"))
    assert f"  from    {called_from}\n          {called_from.source}\n" in str(refusal)


def test_the_users_own_line_needs_no_other() -> None:
    refusal = _refusal(lambda x: x * x.sum().item())
    assert refusal.where.called_from is None and "from  " not in str(refusal)


@pytest.mark.parametrize("name", ["Scale", "Leaver"])
def test_a_module_of_a_library_is_refused_at_the_line_that_calls_it(name: str) -> None:
    module = treeplay.jit(_LIBRARY[name](), lower="aten")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            with torch.enable_grad():
                module(torch.ones(3))  # CALLED
    (warning,) = caught
    line = _line_of(test_a_module_of_a_library_is_refused_at_the_line_that_calls_it, "# CALLED")
    assert f"  from    {__file__}:{line} in test_a_module" in str(warning.message)
    assert f"  from    {__file__}:{line} in test_a_module" in module.explain()


def test_what_a_library_calls_and_fails_names_the_users_line() -> None:
    @treeplay.jit(lower="capture", on_refusal="raise")
    def program(x: torch.Tensor) -> torch.Tensor:
        return _LIBRARY["scale"](x)  # HERE

    with pytest.raises(treeplay.Refusal) as caught:
        for _ in range(3):
            program(torch.ones(3))
    assert caught.value.where.called_from.line == _line_of(
        test_what_a_library_calls_and_fails_names_the_users_line, "# HERE"
    )


def test_a_graph_of_torch_compile_names_the_users_line() -> None:
    trace = f'  File "{__file__}", line 7, in step\n    y = f(x)\n  File "{FILE}", line 3, in f\n    return g(x)\n'
    found = location_in(f'{trace}  File "{torch.__file__}", line 9, in g\n')
    assert found == Location(FILE, 3, "f") and found.called_from == Location(__file__, 7, "step")


def test_a_warning_at_a_librarys_line_names_the_users(recwarn: pytest.WarningsRecorder) -> None:
    scope = library("def warn():\n    warn_once('a slow way')\n", warn_once=treeplay.observe.warn_once)
    scope["warn"]()
    told = str(recwarn.pop(UserWarning).message).splitlines()
    assert told[0] == "a slow way" and told[1].startswith(f"  from    {__file__}:")


def test_two_ways_to_a_line_are_one_line() -> None:
    here, there = Location("a.py", 1), Location("b.py", 2)
    assert Location("lib.py", 3, "f", called_from=here) == Location("lib.py", 3, "f", called_from=there)
    assert "from" not in str(Reason("op", "why", "do", here))

"""From what a user types, `FILE.py:NAME` or `module:NAME`, to a program and its example arguments."""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from treeplay.cli.outcome import CommandError
from treeplay.module import JittedModule
from treeplay.observe.lines import failed_call
from treeplay.program import Jitted

_NOTHING = object()


@dataclass(frozen=True, slots=True)
class Target:
    """A program, what to call it with, and where these arguments come from."""

    name: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    source_of_args: str


def find_target(text: str, arguments: str | None) -> Target:
    """The program named by `text`; `arguments` is a Python expression or None.

    Without an expression, the file's `NAME_args()` or `example_args()` is called. Raises `CommandError`.
    """
    where, separator, name = text.rpartition(":")
    if not separator or not where or not name:
        raise CommandError(f"expected FILE.py:NAME or module:NAME, found {text!r}")
    sys.argv = [where]  # the user's code may parse them, and ours are not for it
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    program = _unwrapped(_lookup(module, name))
    if not callable(program):
        raise CommandError(f"{text} cannot be called: its type is {type(program).__name__}")
    args, source = _arguments(module, name, arguments)
    return Target(name, program, args, source)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise CommandError(f"there is no file {path}")
    sys.path.insert(0, str(path.resolve().parent))
    loader = SourceFileLoader(path.stem, str(path.resolve()))
    module = ModuleType(path.stem)
    module.__file__, module.__loader__ = loader.path, loader
    # As an import does, before its code runs: that may look its own module up.
    sys.modules[path.stem] = module
    with_user_errors(f"loading {path}", functools.partial(loader.exec_module, module))
    return module


def _load_module(name: str) -> ModuleType:
    sys.path.insert(0, os.getcwd())
    missing = CommandError(f"there is no module {name} (for a file, write its path with .py)")
    if name.startswith("."):
        raise missing
    try:
        module: ModuleType = with_user_errors(f"importing {name}", lambda: importlib.import_module(name))
    except CommandError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{name}.".startswith(f"{cause.name}."):
            raise missing from None  # it or its parent, and not what one of them imports
        raise
    return module


def _lookup(module: ModuleType, name: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = with_user_errors(f"looking up {name}", functools.partial(getattr, value, part, _NOTHING))
        if value is _NOTHING:
            raise CommandError(f"{module.__name__} has no {name}{_suggestion(module, name)}")
    return value


def _suggestion(module: ModuleType, name: str) -> str:
    own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    close = difflib.get_close_matches(name, own, n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _unwrapped(program: Any) -> Any:
    """The plain program of one that is jitted already."""
    return program.__wrapped__ if isinstance(program, (Jitted, JittedModule)) else program


def _arguments(module: ModuleType, name: str, expression: str | None) -> tuple[tuple[Any, ...], str]:
    if expression is not None:
        scope = {"torch": torch, **vars(module)}
        return _as_tuple(with_user_errors(f"--args {expression!r}", lambda: eval(expression, scope))), "--args"
    for maker in (f"{name}_args", "example_args"):
        if callable(make := getattr(module, maker, None)):
            return _as_tuple(with_user_errors(f"{maker}()", make)), f"{maker}()"
    return (), "no arguments"


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def with_user_errors(doing: str, act: Callable[[], Any]) -> Any:
    """What `act` gives; an exception in the user's code becomes a `CommandError` with the user's line."""
    try:
        return act()
    # A script may call `sys.exit` while it is loaded.
    except (Exception, SystemExit) as error:
        where = failed_call(error.__traceback__).where
        line = f"\n  at      {where}" if where is not None else ""
        raise CommandError(f"{doing} raised {type(error).__name__}: {error}{line}") from error

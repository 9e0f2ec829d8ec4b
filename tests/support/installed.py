"""Functions as an installed package has them: their file is in site-packages, or says so."""

from __future__ import annotations

import sys
import sysconfig
from types import ModuleType
from typing import Any

import pytest
import torch

FILE = f"{sysconfig.get_paths()['purelib']}/a_library/layers.py"


def library(source: str, **names: Any) -> dict[str, Any]:
    """The names that `source` defines."""
    scope = {"__name__": "a_library.layers", "torch": torch, **names}
    exec(compile(source, FILE, "exec"), scope)
    return scope


def package(source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that `source` makes, known to Python as an installed one."""
    made = ModuleType("a_library")
    made.__file__ = FILE
    monkeypatch.setitem(sys.modules, made.__name__, made)
    exec(compile(source, FILE, "exec"), vars(made))
    return made

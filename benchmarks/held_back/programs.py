"""All held-back programs: importing this takes them into the set."""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.held_back import areas
from benchmarks.held_back.case import PROGRAMS

for _module in pkgutil.iter_modules(areas.__path__):
    importlib.import_module(f"{areas.__name__}.{_module.name}")


def runs_on(name: str, device: str) -> bool:
    """Whether a program is for a device."""
    return device == "cpu" or device in PROGRAMS[name]().devices


__all__ = ["PROGRAMS", "runs_on"]

"""Watched classes: of which objects a trace sees the reads.

Those of the objects that the program was found to hold (`classes_of`), and of what loaded modules hold (`hooks_of_modules`),
but for some that programs do not read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from treeplay.guards.reads.hooks import LEFT_ALONE, ReadHooks, loaded_modules
from treeplay.values.kinds import HEAP, table_of

_UNREAD = (
    *("mpmath", "sympy", "torch._dynamo.variables", "torch._inductor", "torch.utils._sympy"),
    *("_pytest", "execnet", "pluggy"),
    *("_frozen_importlib", "importlib", "torch.utils._pytree", "typing"),
)


def classes_of(objects: Iterable[Any]) -> list[type]:
    """The classes of these objects and of what their attributes hold."""
    found: dict[type, None] = {}
    for value in objects:
        found[type(value)] = None
        found |= dict.fromkeys(map(type, (table_of(value) or {}).values()))
    return [cls for cls in found if cls.__flags__ & HEAP]


def _classes_in_modules() -> tuple[type, ...]:
    """Classes whose instances loaded modules hold, or their instances hold, three steps deep."""
    modules = [
        module for name, module in loaded_modules().items() if isinstance(module, ModuleType) and not _is_unread(name)
    ]
    layer: list[Any] = [value for module in modules for value in (module, *vars(module).values())]
    found: dict[type, None] = {torch.nn.Module: None, torch.optim.Optimizer: None}
    for _step in range(3):
        fresh: list[Any] = []
        for value in layer:
            cls = type(value)
            if not cls.__flags__ & HEAP or issubclass(cls, LEFT_ALONE) or _is_unread(str(cls.__module__)):
                continue
            if cls not in found:
                found[cls] = None
                fresh += [entry for base in cls.__mro__ for entry in list(vars(base).values())]
            fresh += (table_of(value) or {}).values()
        layer = list({id(value): value for value in fresh}.values())
    return tuple(found)


def hooks_of_modules() -> ReadHooks:
    """Hooks for the classes of the objects that loaded modules hold."""
    # Made anew once modules were loaded. Of an object whose class is missed, all attributes count as read.
    return _standing(len(sys.modules))


@lru_cache(maxsize=1)
def _standing(_: int) -> ReadHooks:
    return ReadHooks(_classes_in_modules())


@lru_cache(maxsize=8192)
def _is_unread(module: str) -> bool:
    """Whether programs do not read the objects of a module's classes, of which there are hundreds, or which a trace itself
    reads all the time: to hook these would take half of its time. Of an object that is read all the same, all attributes
    count as read."""
    return module.startswith(_UNREAD)

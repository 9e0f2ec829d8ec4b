"""Watched classes: of which objects a trace sees the reads.

Those of the objects that the program was found to hold (`classes_of`), and of what loaded modules hold (`hooks_of_modules`),
but for some that programs do not read.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from treeplay.guards.reads.hooks import LEFT_ALONE, ReadHooks, loaded_modules
from treeplay.torch_seam.dynamo import version_of_table
from treeplay.values.kinds import HEAP, module_of, table_of

_UNREAD = (
    *("mpmath", "sympy", "torch._dynamo.variables", "torch._inductor", "torch.utils._sympy"),
    *("torch._vendor", "torch.ao", "torch.distributed.rpc", "torch.onnx", "torch.package"),
    *("_distutils_hack", "_sitebuiltins", "email", "jinja2", "pickletools", "unittest"),
    *("_pytest", "execnet", "hypothesis", "pluggy"),
    *("_frozen_importlib", "importlib", "torch.utils._pytree", "typing"),
)

# A decorator holds a manager (`@torch.no_grad()` and `@a_manager()` do) in the closure of a method, where no survey may look.
_ALWAYS = (torch.nn.Module, torch.optim.Optimizer, contextlib._GeneratorContextManager)


def classes_of(objects: Iterable[Any]) -> list[type]:
    """The classes of these objects and of what their attributes hold, or those of their classes: descriptors may too."""
    found: dict[type, None] = {}
    for value in objects:
        found[type(value)] = None
        found |= dict.fromkeys(map(type, (table_of(value) or {}).values()))
    for base in {base: None for cls in found for base in cls.__mro__ if base.__flags__ & HEAP}:
        found |= {cls: None for cls in map(type, list(vars(base).values())) if not _is_unread(module_of(cls))}
    return [cls for cls in found if cls.__flags__ & HEAP]


class _Standing:
    """The classes whose instances loaded modules hold, and hooks for them."""

    def __init__(self) -> None:
        self._version = 0
        self._known: dict[str, tuple[int, int]] = {}  # of each module that was looked through
        self._classes: dict[type, None] = dict.fromkeys(_ALWAYS)
        self._hooks = ReadHooks(self._classes)

    def hooks(self) -> ReadHooks:
        """Made anew once modules were loaded or replaced by such as hold others. Of an object whose class is missed, all
        attributes count as read."""
        if self._version != (version := version_of_table(sys.modules)):
            before = len(self._classes)
            _find_classes(self._changed(), self._classes)
            if len(self._classes) != before:
                self._hooks = ReadHooks(self._classes)
            self._version = version
        return self._hooks

    def _changed(self) -> list[ModuleType]:
        """Modules that are new, or hold more or less than when they were looked through."""
        changed = []
        for name, module in loaded_modules().items():
            if isinstance(module, ModuleType) and not _is_unread(name):
                state = id(module), len(vars(module))
                if self._known.get(name) != state:
                    self._known[name] = state
                    changed.append(module)
        return changed


def _find_classes(modules: Iterable[ModuleType], found: dict[type, None]) -> None:
    """Add the classes whose instances these modules hold, or their instances hold, three steps deep."""
    layer: list[Any] = [value for module in modules for value in (module, *vars(module).values())]
    for _step in range(3):
        fresh: list[Any] = []
        for value in layer:
            cls = type(value)
            if not cls.__flags__ & HEAP or issubclass(cls, LEFT_ALONE) or _is_unread(module_of(cls)):
                continue
            if cls not in found:
                found[cls] = None
                fresh += [entry for base in cls.__mro__ for entry in list(vars(base).values())]
            fresh += (table_of(value) or {}).values()
        layer = list({id(value): value for value in fresh}.values())


_standing = _Standing()


def hooks_of_modules() -> ReadHooks:
    """Hooks for the classes of the objects that loaded modules hold."""
    return _standing.hooks()


@lru_cache(maxsize=8192)
def _is_unread(module: str) -> bool:
    """Whether programs do not read the objects of a module's classes, of which there are hundreds, or which a trace itself
    reads all the time: to hook these would take half of its time. Of an object that is read all the same, all attributes
    count as read."""
    return module.startswith(_UNREAD)

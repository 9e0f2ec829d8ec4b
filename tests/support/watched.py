"""Objects whose reads are watched, for tests of what is noted and how."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import torch

from treeplay.guards.reads.reads import Reads


class Plain:
    def __init__(self) -> None:
        self.a = 1.0
        self.b = 2.0


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1.0


class Meta(type):
    @property
    def size(cls) -> int:
        return 3


class OfMeta(metaclass=Meta):
    a = 1.0


class Careful:
    """A class that already looks at its reads and stores."""

    seen: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        Careful.seen.append(f"get {name}")
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        Careful.seen.append(f"set {name}")
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        Careful.seen.append(f"delete {name}")
        object.__delattr__(self, name)


def noted(value: Any, program: Callable[[Any], Any], *also: type) -> list[str]:
    """The names that a program reads of a value."""
    with Reads([type(value), *also]) as reads:
        program(value)
    return list(reads.names(value))


def state() -> list[Any]:
    """What watching changes: entries of classes, classes of modules, callbacks of the collector, the profiler."""
    watched = (Plain, Slotted, Careful, OfMeta, torch.nn.Module, torch.optim.Optimizer)
    tables = [[(name, id(value)) for name, value in vars(cls).items()] for cls in watched]
    kinds = [(name, type(module)) for name, module in sorted(sys.modules.items())]
    return [tables, kinds, gc.callbacks[:], sys.getprofile()]

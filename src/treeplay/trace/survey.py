"""Survey: what a program can reach without being given it.

In: the program. Out: a `Survey`, the places of tensors, modules, optimizers and plain numbers that can be reached from its
closure, its globals, its `self` and its defaults, and the containers on the way (they are put back after a trace).

Functions of the user are followed through the names in their code; torch's own, the standard library's and classes
without an instance dictionary are not entered. What a survey does not find, a trace refuses to use as state.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from treeplay.facts.place import How, Place, root
from treeplay.trace.location import is_users
from treeplay.trace.names import methods_used, names_in, values_in

PLAIN = (bool, int, float, complex, str, bytes, type(None))
_NUMBERS = (bool, int, float, complex)
_MOST_OBJECTS = 200_000
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@dataclass(slots=True)
class Survey:
    """What was found. Tables are keyed by `id`; `kept` holds every object so that no id is used twice."""

    tensors: dict[int, list[Place]] = field(default_factory=dict)
    objects: dict[int, Place] = field(default_factory=dict)
    modules: dict[int, torch.nn.Module] = field(default_factory=dict)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    numbers: list[tuple[Place, Any]] = field(default_factory=list)
    containers: dict[int, dict[Any, Any] | list[Any]] = field(default_factory=dict)
    container_places: dict[int, Place] = field(default_factory=dict)
    cells: list[Place] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    is_complete: bool = True

    def tensor_at(self, tensor: torch.Tensor) -> list[Place]:
        """Where `tensor` was found, the first place first; empty where it was not."""
        return self.tensors.get(id(tensor), [])


def survey(program: Any, extra: Iterable[Any] = ()) -> Survey:
    """Find all that `program` reaches; `extra` are further objects to start from (modules seen while it ran)."""
    walk = _Walk()
    walk.enter(program, root(program, "program"))
    for index, value in enumerate(extra):
        if id(value) not in walk.seen:
            walk.enter(value, root(value, f"{type(value).__name__}#{index}"))
    walk.run()
    return walk.found


class _Walk:
    """Breadth first, each object once; what a place leads to is told apart by type."""

    def __init__(self) -> None:
        self.found = Survey()
        self.seen: set[int] = set()
        self.waiting: collections.deque[tuple[Any, Place]] = collections.deque()
        self.value_names: set[str] = set()
        self.candidates: list[tuple[str, Place, Any]] = []

    def enter(self, value: Any, place: Place) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value, place)
        elif not isinstance(value, (*PLAIN, type, BuiltinFunctionType)) and id(value) not in self.seen:
            self.seen.add(id(value))
            self.found.kept.append(value)
            self.waiting.append((value, place))

    def run(self) -> None:
        while self.waiting:
            if len(self.seen) > _MOST_OBJECTS:
                self.found.is_complete = False
                break
            self._visit(*self.waiting.popleft())
        # A number in an object is watched if any code that the program can run reads an attribute of that name.
        self.found.numbers += [(place, value) for name, place, value in self.candidates if name in self.value_names]

    def _visit(self, value: Any, place: Place) -> None:
        if isinstance(value, torch.nn.Module):
            self._module(value, place)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(value, place)
        elif isinstance(value, (dict, list, tuple, set, frozenset, collections.deque)):
            self._container(value, place)
        elif isinstance(value, FunctionType):
            self._function(value, place)
        elif isinstance(value, MethodType):
            self._method(value, place)
        elif isinstance(value, functools.partial):
            for label in ("func", "args", "keywords"):
                self.enter(getattr(value, label), root(getattr(value, label), f"{place}.{label}"))
        elif isinstance(value, CellType):
            self._cell(value, place)
        elif not isinstance(value, ModuleType):
            self._instance(value, place)

    def _tensor(self, tensor: torch.Tensor, place: Place) -> None:
        places = self.found.tensors.setdefault(id(tensor), [])
        places.append(place)
        if len(places) == 1:
            self.found.kept.append(tensor)
            if tensor.is_leaf and tensor.grad is not None:
                self._tensor(tensor.grad, place.child(How.GRAD, tensor, None, f"{place}.grad"))

    def _keep(self, container: dict[Any, Any] | list[Any], place: Place) -> None:
        self.found.containers[id(container)] = container
        self.found.container_places[id(container)] = place

    def _module(self, module: torch.nn.Module, place: Place) -> None:
        self.found.modules[id(module)] = module
        self.found.objects[id(module)] = place
        label = str(place)
        for table in _MODULE_TABLES:
            values = module.__dict__[table]
            self._keep(values, place)
            for name, value in values.items():
                self.enter(value, place.child(How.ITEM, values, name, f"{label}.{name}"))
        self._methods(type(module), "forward")
        self._attributes(module, place, skip=_MODULE_TABLES)

    def _methods(self, cls: type, entry: str) -> None:
        """Note the names that a class's entry method, and what it calls on itself, read; enter the user's functions."""
        for method in methods_used(cls, entry):
            self.value_names |= values_in(method.__code__)
            if is_users(method.__code__.co_filename):
                self.enter(method, root(method, method.__qualname__))

    def _attributes(self, value: Any, place: Place, skip: tuple[str, ...] = ()) -> None:
        table = vars(value)
        self._keep(table, place)
        for name, entry in list(table.items()):
            if name in skip:
                continue
            here = place.child(How.ITEM, table, name, f"{place}.{name}")
            if isinstance(entry, _NUMBERS):
                self.candidates.append((name, here, entry))
            elif not (name.startswith("_") and isinstance(value, (torch.nn.Module, torch.optim.Optimizer))):
                self.enter(entry, here)

    def _optimizer(self, optimizer: torch.optim.Optimizer, place: Place) -> None:
        self.found.optimizers.append(optimizer)
        self.found.objects[id(optimizer)] = place
        table = vars(optimizer)
        self._keep(table, place)
        for name in ("state", "param_groups"):
            here = place.child(How.ITEM, table, name, f"{place}.{name}")
            self.enter(table[name], here)

    def _container(self, values: Any, place: Place) -> None:
        if isinstance(values, (dict, list)):
            self._keep(values, place)
        if isinstance(values, dict):
            pairs: list[tuple[Any, Any]] = list(values.items())
        elif isinstance(values, (list, tuple)):
            pairs = list(enumerate(values))
        else:
            # Sets and deques have no place that can be read again: only whole objects in them are followed.
            pairs = []
            for value in list(values):
                self.enter(value, root(value, f"an item of {place}"))
        for key, value in pairs:
            shown = repr(key) if isinstance(key, (str, int)) else f"<{type(key).__name__}>"
            self.enter(value, place.child(How.ITEM, values, key, f"{place}[{shown}]"))

    def _cell(self, cell: CellType, place: Place) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # not yet assigned
            return
        here = place.child(How.CELL, cell, None, str(place))
        self.found.cells.append(here)
        if isinstance(value, _NUMBERS):
            self.found.numbers.append((here, value))
        self.enter(value, here)

    def _function(self, function: FunctionType, place: Place) -> None:
        code = function.__code__
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.enter(wrapped, root(wrapped, str(place)))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.enter(cell, root(cell, name))
        self.enter(function.__defaults__ or (), root(function.__defaults__ or (), f"{place}.__defaults__"))
        if function.__kwdefaults__:
            self.enter(function.__kwdefaults__, root(function.__kwdefaults__, f"{place}.__kwdefaults__"))
        if is_users(code.co_filename):
            names = names_in(code)
            self.value_names |= values_in(code)
            self._globals(function.__globals__, names, root(function.__globals__, "globals"), "")

    def _globals(self, table: dict[str, Any], names: frozenset[str], place: Place, prefix: str) -> None:
        for name in sorted(names & table.keys()):
            value = table[name]
            here = place.child(How.ITEM, table, name, f"{prefix}{name}")
            if isinstance(value, _NUMBERS):
                self.found.numbers.append((here, value))
            elif isinstance(value, ModuleType):
                file = getattr(value, "__file__", None)
                if file and is_users(file) and id(value) not in self.seen and prefix.count(".") < 3:
                    self.seen.add(id(value))
                    self._globals(vars(value), names, root(vars(value), name), f"{prefix}{name}.")
            else:
                self.enter(value, here)

    def _method(self, method: MethodType, place: Place) -> None:
        owner = method.__self__
        self.enter(owner, root(owner, "self"))
        self.enter(method.__func__, root(method.__func__, str(place)))
        self._methods(type(owner), method.__func__.__name__)

    def _instance(self, value: Any, place: Place) -> None:
        cls = type(value)
        if not hasattr(value, "__dict__") or cls.__module__.partition(".")[0] in _LIBRARIES:
            return
        self.found.objects[id(value)] = place
        if callable(value):
            self._methods(cls, "__call__")
        self._attributes(value, place)


_LIBRARIES = frozenset({"torch", "treeplay", "numpy", "builtins", "collections", "threading", "logging", "weakref"})

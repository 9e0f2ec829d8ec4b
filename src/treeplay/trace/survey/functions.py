"""Functions in a survey: what a function can reach, told by its closure, its defaults and the names in its code.

Globals are entered by name, as are modules of the user's among them. Of a class, the methods are followed that something calls
on its objects (`methods`), and of the user's own classes also those that code names somewhere or that Python calls by itself
(`enter_named_methods`, once nothing else waits).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import torch

from treeplay.guards.reads.names import (
    NAMESPACES,
    globals_within,
    imports_in,
    inner_code,
    names_within,
    stores_within,
    strings_within,
)
from treeplay.observe.lines import is_own_or_text, is_users_or_text
from treeplay.trace.survey.names import ALWAYS, FOREIGN, Names, is_of_library
from treeplay.trace.survey.walk import SurveyWalk
from treeplay.values.kinds import is_a
from treeplay.values.place import How, Place

# Special methods are called without being named, but for those that make, copy and remove objects.
_MAKES = frozenset({"__init__", "__new__"})
_NOT_IN_A_RUN = "reduce reduce_ex getstate setstate copy deepcopy del init_subclass set_name"
_COPIES = frozenset(f"__{name}__" for name in _NOT_IN_A_RUN.split())
_BY_APPLY = frozenset({"forward", "setup_context", "backward", "vjp", "jvp", "vmap"})  # of a custom function
_MOST_DECORATORS = 16
_GIVE_A_NAMESPACE = NAMESPACES | {"vars", "__dict__"}


class SurveyedFunctions:
    """What can be called, as a survey follows it."""

    def __init__(self, walk: SurveyWalk) -> None:
        self._walk = walk
        self._modules: set[tuple[ModuleType, CodeType]] = set()
        self._methods: set[tuple[type, str]] = set()  # of the user's own classes, that are watched

    def function(self, function: FunctionType, place: Place, _: Names) -> None:
        """Follow a Python function."""
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self._walk.enter(cell, self._walk.root(cell, name), ALWAYS)
        for label in ("__defaults__", "__kwdefaults__"):
            defaults = getattr(function, label) or ()
            self._walk.enter(defaults, self._walk.root(defaults, f"{place}.{label}"), ALWAYS)
        if is_users_or_text(code.co_filename):
            self._walk.names.read(function)
            self._own_attributes(function, place)
            self._globals(function.__globals__, code, "")
            if not NAMESPACES.isdisjoint(names_within(code)):
                self._walk.found.namespaces[id(function.__globals__)] = function.__globals__
            for name in sorted({name for one in (code, *inner_code(code)) for name in imports_in(one)}):
                if isinstance(module := sys.modules.get(name), ModuleType):
                    self._python_module(module, code, f"{name}.")

    def cell(self, cell: CellType, place: Place, needs: Names) -> None:
        """Follow a closure's cell."""
        self._walk.enter_place(place.child(How.CELL, cell, None, str(place)), needs)

    def method(self, method: MethodType, place: Place, needs: Names) -> None:
        """Follow a bound method."""
        owner = method.__self__
        self._walk.enter(owner, self._walk.root(owner, "self"), needs)
        self._walk.enter(method.__func__, self._walk.root(method.__func__, str(place)), needs)
        self.methods(type(owner), method.__func__.__name__)

    def bound(self, method: MethodWrapperType, place: Place, needs: Names) -> None:
        """Follow a special method to its object."""
        self._walk.enter(method.__self__, place.child(How.ATTRIBUTE, method, "__self__", str(place)), needs)

    def partial(self, partial: functools.partial[Any], place: Place, needs: Names) -> None:
        """Follow a partial and its arguments."""
        self._own_attributes(partial, place)
        for label in ("func", "args", "keywords"):
            self._walk.enter(
                getattr(partial, label), self._walk.root(getattr(partial, label), f"{place}.{label}"), needs
            )

    def methods(self, cls: type, entry: str) -> None:
        """Note the names that a class's entry method, and what it calls on itself, read; enter the user's functions."""
        for method in methods_used(cls, entry):
            self._walk.names.read(method)
            if is_users_or_text(method.__code__.co_filename):
                self._walk.enter(method, self._walk.root(method, method.__qualname__), ALWAYS)

    def enter_named_methods(self) -> None:
        """Enter the methods of the user's own classes that code met so far names, or that Python calls by itself."""
        names = self._walk.names.any
        makes_any = not names.isdisjoint(("type", "__class__"))  # `type(self)(...)`
        for cls in self._walk.classes:
            found: list[type] = type.__subclasses__(cls) if "__subclasses__" in names else []
            for derived in found:
                self._walk.enter(derived, self._walk.root(derived, derived.__qualname__), ALWAYS)
            for name, entry in vars(cls).items():
                is_special = name.startswith("__") and name.endswith("__") and name not in _COPIES
                is_called = is_special and (name not in _MAKES or makes_any or cls in self._walk.named)
                is_called |= name in _BY_APPLY and issubclass(cls, torch.autograd.Function)
                method = _function_of(entry)
                if method is not None and (name in names or is_called):
                    self._walk.enter(method, self._walk.root(method, method.__qualname__), ALWAYS)
                    cache = getattr(entry, "__func__", entry)
                    if is_a(cache, functools._lru_cache_wrapper):  # by itself too, for what it has given
                        self._walk.enter(cache, self._walk.root(cache, method.__qualname__), ALWAYS)
                    if method is entry and (cls, name) not in self._methods:
                        self._methods.add((cls, name))
                        place = self._walk.root(cls, cls.__qualname__).child(
                            How.ATTRIBUTE, cls, name, method.__qualname__
                        )
                        self._walk.candidates.append((ALWAYS, place, entry))

    def _own_attributes(self, function: FunctionType | functools.partial[Any], place: Place) -> None:
        table = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        if table:
            self._walk.keep(vars(function), place)
        for name, value in table.items():
            here = self._walk.root(function, str(place)).child(How.ITEM, vars(function), name, f"{place}.{name}")
            self._walk.enter(value, here, frozenset({name}))

    def _globals(self, table: dict[str, Any], code: CodeType, prefix: str) -> None:
        names, stored = names_within(code), stores_within(code)
        if not _GIVE_A_NAMESPACE.isdisjoint(names):  # `globals()["total"] += 1`
            spelled = frozenset(text for text in strings_within(code) if text.isidentifier())
            names, stored = names | spelled, stored | spelled
        place = self._walk.root(table, prefix.rstrip(".") or "globals")
        whose = ALWAYS if is_own_or_text(code.co_filename) else FOREIGN
        # Its own globals may be reached as attributes of the module, too; one named as a function is as a rule another's.
        looked_up = names if prefix else globals_within(code)
        for name in sorted(names & (table.keys() | stored)):
            if name[0] == "@":  # how pytest names itself in a rewritten `assert`, to tell of one that failed
                continue
            value = table.get(name)
            if name not in looked_up and callable(value) and not is_a(value, (type, torch.nn.Module)):
                continue
            here = place.child(How.ITEM, table, name, f"{prefix}{name}")
            if isinstance(value, ModuleType):
                self._python_module(value, code, f"{prefix}{name}.")
            elif name in stored:
                self._walk.enter_place(here, whose | {name})
            else:
                self._walk.enter(value, here, whose | {name})

    def _python_module(self, module: ModuleType, code: CodeType, prefix: str) -> None:
        file = getattr(module, "__file__", None)
        if (
            file
            and is_users_or_text(file)
            and not is_of_library(module.__name__)
            and (module, code) not in self._modules
            and prefix.count(".") <= 3
        ):
            self._modules.add((module, code))
            self._globals(vars(module), code, prefix)


def _function_of(entry: Any) -> FunctionType | None:
    """The user's function behind an entry of a class: a method, a property, a static or a jitted method, or what decorators
    made of one."""
    for name in ("__func__", "fget", "func", "__wrapped__"):
        entry = getattr(entry, name, None) or entry
    for _ in range(_MOST_DECORATORS):  # an object may answer whatever it is asked for with itself
        if is_a(entry, FunctionType) and is_own_or_text(entry.__code__.co_filename):
            return entry  # type: ignore[no-any-return]
        entry = getattr(entry, "__wrapped__", None)
    return None


def methods_used(cls: type, entry: str) -> Iterator[FunctionType]:
    """The plain functions of `cls` that its method `entry` can call on `self`, judged by their names."""
    waiting, seen = [entry], {entry}
    while waiting:
        method = getattr(cls, waiting.pop(), None)
        if isinstance(method, property):
            method = method.fget
        if not isinstance(method, FunctionType) or _is_of_base(method):
            continue
        yield method
        fresh = names_within(method.__code__) - seen
        seen |= fresh
        waiting.extend(fresh)


def _is_of_base(method: FunctionType) -> bool:
    # What every module inherits (`state_dict`, `apply`, ...) says nothing about this one.
    return torch.nn.Module.__dict__.get(method.__name__) is method

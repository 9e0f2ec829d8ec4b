"""Survey: what a program can reach without being given it.

In: the program. Out: a `Survey`, the places of tensors, modules, optimizers and plain values that can be reached from its
closure, its globals, its `self`, its defaults and the hooks on all modules or optimizers, and the containers on the way (they
are put back after a trace).

    walk        what was met and found, each object once     walk
    functions   followed through the names in their code     functions, names
    objects     through their attributes                     objects
    containers  through their items                          here

The standard library's objects and those without attributes are not entered. What a survey does not find, a trace refuses to use
as state.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable, Set
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch

from treeplay.guards.caches import Filled, keeps_results
from treeplay.guards.entries import behind_proxy
from treeplay.guards.walk.kinds import memories
from treeplay.torch_seam.layers import global_hook_tables, hooks_but_ours
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.trace.restore.bare import dict_items
from treeplay.trace.restore.memory import ENVIRONMENT
from treeplay.trace.survey.found import GONE, Survey
from treeplay.trace.survey.functions import SurveyedFunctions
from treeplay.trace.survey.names import ALWAYS, DATA, ItemName, Names
from treeplay.trace.survey.objects import SurveyedObjects
from treeplay.trace.survey.walk import SurveyWalk
from treeplay.values.kinds import CONTAINERS, MUTABLE_CONTAINERS, PLAIN, is_a, items, table_of
from treeplay.values.place import How, Place
from treeplay.values.structure import is_namedtuple

_LEAD_ELSEWHERE = (
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    type,
    torch.Tensor,
)  # to code, which names what it uses
_NUMBERS = (int, float)  # of a tuple of plain values, which counts as a whole
_Way = Callable[[Any, Place, Names], None]
_MOST_WATCHED = 16  # a longer list of numbers is data, not a setting
_MOST_KEYED = 128  # so are those in a larger dictionary, unless code has their keys


def survey(program: Any, extra: Iterable[Any] = (), ran: Set[str] = frozenset()) -> Survey:
    """Find all that `program` reaches; `extra` are further objects to start from (arguments that are no tensors), `ran` the
    names in code that is known to run."""
    walk = SurveyWalk(ran)
    with DisableTorchFunctionSubclass():  # a tensor's class is not asked either
        walk.enter(program, walk.root(program, "program"), ALWAYS)
        for index, value in enumerate(extra):
            if id(value) not in walk.seen:
                walk.enter(value, walk.root(value, f"{type(value).__name__}#{index}"), ALWAYS)
        for table in global_hook_tables():  # which run for each module and optimizer, also for those made inside
            for hook in hooks_but_ours(table).values():
                walk.enter(hook, walk.root(hook, "a hook of all modules or optimizers"), ALWAYS)
        return _Surveyor(walk).run()


def survey_late(module: dict[str, Any], name: str, known: Set[int], keys: Iterable[str]) -> Survey:
    """Find what a program reaches under a name of a module, apart from objects that are known, by their `id`. `keys`: strings
    by which it may ask for other modules."""
    walk, value = SurveyWalk(), module.get(name)
    if id(value) in known or is_a(value, (*PLAIN, *_LEAD_ELSEWHERE)):
        return walk.found
    owner = walk.root(module, str(module.get("__name__", "module")))
    place = owner.child(How.ITEM, module, name, f"{owner}.{name}")
    if value is sys.modules:  # where whatever is imported appears, by the program's doing or not
        places = (place.child(How.ITEM, value, key, f"{place}[{key!r}]") for key in keys)
        walk.found.cells += [(at, at.read_or(GONE)) for at in places]
        return walk.found
    walk.seen |= known
    walk.enter(value, place, ALWAYS)
    return _Surveyor(walk).run()


class _Surveyor:
    """Goes on until nothing waits; what a place leads to is told apart by type."""

    def __init__(self, walk: SurveyWalk) -> None:
        self._walk = walk
        self._functions = functions = SurveyedFunctions(walk)
        self._objects = objects = SurveyedObjects(walk, functions)
        self._ways: tuple[tuple[Any, _Way], ...] = (
            (torch.nn.Module, objects.module),
            (torch.optim.Optimizer, objects.optimizer),
            (CONTAINERS, functools.partial(_container, walk)),
            (FunctionType, functions.function),
            (MethodType, functions.method),
            (MethodWrapperType, functions.bound),
            (functools.partial, functions.partial),
            (CellType, functions.cell),
            (type, objects.class_),
            (torch.Generator, objects.generator),
            ((*memories(), contextvars.ContextVar, ENVIRONMENT), objects.memory),
            (functools._lru_cache_wrapper, functools.partial(_cached, walk)),
            (torch.amp.GradScaler, objects.scaler),
            (ModuleType, _nothing),
            (weakref.ProxyTypes, functools.partial(_proxy, walk)),
            (weakref.WeakMethod, functools.partial(_weak_method, walk)),
            (MappingProxyType, functools.partial(_view, walk)),
        )

        self._way_of: dict[type, _Way] = {}  # of a class, whose objects are all followed alike

    def run(self) -> Survey:
        while self._walk.is_waiting:
            found = self._walk.next()
            if found is None:
                return self._walk.result(is_complete=False)
            self._visit(*found)
            if not self._walk.is_waiting:
                self._functions.enter_named_methods()
        return self._walk.result(is_complete=True)

    def _visit(self, value: Any, place: Place, needs: Names) -> None:
        wrapped = _wrapped_by(value)
        if wrapped is not None:
            self._walk.enter(wrapped, place.child(How.ATTRIBUTE, value, "__wrapped__", str(place)), needs)
            if is_a(value, torch.nn.Module):  # a jitted module: its tables are those of the module
                return
        way = self._way_of.get(type(value))
        if way is None:
            way = next((follow for kind, follow in self._ways if is_a(value, kind)), self._objects.instance)
            self._way_of[type(value)] = way
        way(value, place, needs)


def _container(walk: SurveyWalk, values: Any, place: Place, needs: Names) -> None:
    if is_a(values, dict) and dict.keys(values) >= {"__builtins__", "__name__"}:
        return  # globals, which are entered by name, from the functions that use them
    if is_a(values, MUTABLE_CONTAINERS):
        walk.keep(values, place)
    else:
        walk.found.container_places.setdefault(id(values), place)
    attributes = table_of(values)  # of an object of a class that is derived from a container's
    if attributes:
        walk.keep(attributes, place)
        for name, value in dict.copy(attributes).items():
            walk.enter(value, place.child(How.ITEM, attributes, name, f"{place}.{name}"), needs | {name})
    if is_a(values, dict):
        many = DATA if len(values) > _MOST_KEYED else ALWAYS
        for key, value in dict_items(values):
            shown = repr(key) if is_a(key, (str, int)) else f"<{type(key).__name__}>"
            needed = needs | {ItemName(key)} | many if is_a(key, str) and is_a(value, PLAIN) else needs
            walk.enter(value, place.child(How.ITEM, values, key, f"{place}[{shown}]"), needed)
    elif is_a(values, (list, tuple, collections.deque)):
        found = items(values)
        is_rebuilt = not is_a(values, tuple) or type(values) is tuple or is_namedtuple(type(values))
        for index, value in enumerate(found):
            is_plain = is_a(value, _NUMBERS if is_a(values, tuple) else PLAIN)
            if not is_a(value, PLAIN) or (is_plain and is_rebuilt and len(found) <= _MOST_WATCHED):
                walk.enter(value, place.child(How.ITEM, values, index, f"{place}[{index}]"), needs)
    else:
        # What is in a set has no place that can be read again: only whole objects in it are followed.
        for value in items(values):
            walk.enter(value, walk.root(value, f"an item of {place}"), needs)


def _proxy(walk: SurveyWalk, proxy: Any, place: Place, needs: Names) -> None:
    walk.enter(behind_proxy(proxy), place, needs)


def _weak_method(walk: SurveyWalk, reference: Any, place: Place, needs: Names) -> None:
    method = reference()
    if is_a(method, MethodType):  # whose owner is kept alive by others, and is found there
        walk.enter(method.__func__, walk.root(method.__func__, str(place)), needs)


def _cached(walk: SurveyWalk, function: Any, place: Place, needs: Names) -> None:
    """Follow what a cached function was given and has given; of its containers, which a caller may change, what is in them."""
    if not keeps_results(function):
        return
    held = Filled.now(function)
    walk.found.cached.append(held)
    waiting = [value for entry in held.entries for value in entry if not is_a(value, PLAIN)]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        here = walk.root(value, f"a result of {place}")
        if is_a(value, MUTABLE_CONTAINERS):
            walk.keep_sealed(value, here)
        if not is_a(value, CONTAINERS):
            walk.enter(value, here, needs)
        elif id(value) not in seen:
            seen.add(id(value))
            found = dict.values(value) if is_a(value, dict) else items(value)
            waiting += (each for each in found if not is_a(each, PLAIN))


def _view(walk: SurveyWalk, view: Any, place: Place, needs: Names) -> None:
    for values in gc.get_referents(view):
        walk.enter(values, walk.root(values, str(place)), needs)


def _nothing(_: Any, __: Place, ___: Names) -> None:
    """Python modules are entered by name only, from the functions that use them."""


def _wrapped_by(value: Any) -> Any:
    """What a decorated function, or a jitted program or module, stands for."""
    table = table_of(value)
    if table is not None and "__wrapped__" in table:
        return table["__wrapped__"]
    giving = next((base for base in type(value).__mro__ if "__wrapped__" in vars(base)), None)
    return value.__wrapped__ if giving is not None and str(giving.__module__).startswith("treeplay.") else None

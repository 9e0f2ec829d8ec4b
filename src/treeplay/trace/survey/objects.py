"""Objects in a survey: modules, optimizers, scalers, and whatever else has attributes, with their classes.

module       its parameters, buffers and submodules, its hooks, and attributes; what its `forward` runs
optimizer    its state and parameter groups, its hooks, and the attributes that a user's class adds
object       its attributes, in its dictionary and in slots, and the plain values that its classes give it; of a library's
             object those that a user has put on it
class        its data
"""

from __future__ import annotations

import collections
import enum
import io
import threading
from collections.abc import Iterable
from typing import Any

import torch

from treeplay.guards.entries import is_found_on, users_attributes
from treeplay.torch_seam.layers import MODULE_HOOKS, MODULE_TABLES, OPTIMIZER_HOOKS, OPTIMIZER_OWN
from treeplay.torch_seam.scripts import ScriptModule
from treeplay.trace.survey.functions import SurveyedFunctions
from treeplay.trace.survey.names import ALWAYS, FOREIGN, NEVER, Names, is_of_library, is_users_class, origin
from treeplay.trace.survey.walk import SurveyWalk
from treeplay.trace.training.scaling import find_scaler, settings_of
from treeplay.values.kinds import (
    MUTABLE_CONTAINERS,
    PLAIN,
    gives_items_in_python,
    hands_items_out,
    is_a,
    is_iterator,
    module_of,
    slots_of,
    table_of,
)
from treeplay.values.place import How, Place

_MODULE_OWN = frozenset(vars(torch.nn.Module())) - set(MODULE_HOOKS)
_ENTERED = (
    "torch.optim",
    "torch.amp",
    "torch.distributions",
    "torch.nn",
    "collections",
    "multiprocessing.sharedctypes",
)
_AROUND_CONTAINERS = (collections.UserDict, collections.UserList, collections.ChainMap)
_KEEPS_CONTAINERS = ("weakref", "_weakrefset", "contextlib", "configparser", "sched")


class SurveyedObjects:
    """What has attributes, as a survey follows it."""

    def __init__(self, walk: SurveyWalk, functions: SurveyedFunctions) -> None:
        self._walk = walk
        self._functions = functions

    def module(self, module: torch.nn.Module, place: Place, needs: Names) -> None:
        """Follow a module."""
        if is_a(module, ScriptModule):  # its parameters are in no dictionary of Python's: a trace refuses to use them
            self._walk.found.memories += [(part, place) for part in module.modules()]
            return
        if not all(is_a(vars(module).get(table), dict) for table in (*MODULE_TABLES, *MODULE_HOOKS)):
            self.instance(module, place, needs)  # made without its constructor
            return
        walk, whose = self._walk, origin(type(module))  # whether its values count depends on whether it is called
        walk.found.modules[id(module)] = module
        walk.found.objects[id(module)] = place
        for table in MODULE_TABLES:
            values = module.__dict__[table]
            walk.keep(values, place)
            for name, value in values.items():
                needed = frozenset({name}) if value is None else ALWAYS
                walk.enter(value, place.child(How.ITEM, values, name, f"{place}.{name}"), needed)
        for table in MODULE_HOOKS:
            for hook in module.__dict__[table].values():
                walk.enter(hook, walk.root(hook, f"a hook of {place}"), whose)
        self._functions.methods(type(module), "forward")
        if whose is ALWAYS:  # it may be given another one, as may its class
            forward = place.child(How.ATTRIBUTE, module, "forward", f"{place}.forward")
            walk.candidates.append((ALWAYS, forward, module.forward))
        self._attributes(module, place, whose, skip=_MODULE_OWN - {"training"})

    def optimizer(self, optimizer: torch.optim.Optimizer, place: Place, needs: Names) -> None:
        """Follow an optimizer."""
        if not {"state", "param_groups"} <= vars(optimizer).keys():  # made without its constructor
            self.instance(optimizer, place, needs)
            return
        walk, table = self._walk, vars(optimizer)
        walk.found.optimizers.append(optimizer)
        walk.found.objects[id(optimizer)] = place
        walk.keep(table, place)
        is_users = is_users_class(type(optimizer))
        for name in ("state", "param_groups"):
            # Torch's own count in tensors.
            needed = frozenset({name}) if is_users else NEVER
            walk.enter(table[name], place.child(How.ITEM, table, name, f"{place}.{name}"), needed)
        own = OPTIMIZER_OWN if is_users else ("_",)
        for name in [name for name in table if not name.startswith(own) and name not in ("state", "param_groups")]:
            walk.enter(table[name], place.child(How.ITEM, table, name, f"{place}.{name}"), frozenset({name}))
        if is_users:
            self._of_class(optimizer, place)
        for name in OPTIMIZER_HOOKS:
            for hook in table.get(name, {}).values():
                walk.enter(hook, walk.root(hook, f"a hook of {place}"), needs)

    def scaler(self, scaler: Any, place: Place, needs: Names) -> None:
        """Follow a gradient scaler."""
        self._walk.found.scalers.append(find_scaler(scaler, place))
        self._walk.candidates += [(ALWAYS, *setting) for setting in settings_of(scaler, place)]
        self.instance(scaler, place, needs)

    def generator(self, generator: torch.Generator, place: Place, _: Names) -> None:
        """Note a random generator."""
        self._walk.found.generators[id(generator)] = generator
        self._walk.found.objects[id(generator)] = place

    def instance(self, value: Any, place: Place, needs: Names) -> None:
        """Follow an object of any other class."""
        cls = type(value)
        # The user's own code runs in the trace.
        is_in_python = origin(cls) is ALWAYS and gives_items_in_python(cls)
        hides_items = is_iterator(value) and not is_a(value, io.IOBase) and not is_in_python
        if hides_items or hands_items_out(value):
            self._walk.iterators.append((needs, place))
        module = module_of(cls)
        is_entered = module.startswith(_ENTERED) or is_a(value, (threading.local, BaseException))
        if is_of_library(module) and not is_entered:
            if module.startswith(_KEEPS_CONTAINERS):
                self._containers(value, place)
            for name in users_attributes(value):
                self._walk.enter_place(place.child(How.ITEM, vars(value), name, f"{place}.{name}"), needs | {name})
            return
        self._walk.found.objects[id(value)] = place
        whose = origin(cls) | (needs & FOREIGN)
        if callable(value):
            self._functions.methods(cls, "__call__")
        if table_of(value) is not None:
            self._attributes(value, place, whose)
        else:
            self._of_class(value, place)
        self._slots(value, place, whose)

    def memory(self, value: Any, place: Place, needs: Names) -> None:
        """Note memory without tensors, or a context variable."""
        self._walk.found.memories.append((value, place))
        if is_users_class(type(value)):
            self.instance(value, place, needs)

    def _containers(self, value: Any, place: Place) -> None:
        """Of an object of the standard library's the containers alone, which a trace puts back."""
        for name, entry in dict.copy(table_of(value) or {}).items():
            here = self._walk.root(entry, f"{place}.{name}")
            for found in (entry, *dict.values(entry)) if is_a(entry, dict) else (entry,):
                if is_a(found, MUTABLE_CONTAINERS):
                    self._walk.keep_sealed(found, here)

    def class_(self, cls: type, place: Place, _: Names) -> None:
        """Follow a class of the user's or a third party's."""
        self._walk.found.objects[id(cls)] = place
        if origin(cls) is ALWAYS:
            self._walk.classes.append(cls)
        for name, value in _data_of(cls):
            here, needs = place.child(How.ATTRIBUTE, cls, name, f"{place}.{name}"), origin(cls) | {name}
            # By a property of the metaclass: nobody can assign what only instances see.
            if is_found_on(type(cls), name):
                self._walk.enter(value, self._walk.root(value, str(here)), needs)
            else:
                self._walk.enter_place(here, needs)
        if origin(cls) is ALWAYS:
            self._methods_of_other_kinds(cls, place)

    def _methods_of_other_kinds(self, cls: type, place: Place) -> None:
        """Descriptors, what decorators made of methods, and the metaclass, where these are of the user's classes."""
        for name, value in vars(cls).items():
            if not is_a(value, type) and is_users_class(type(value)):
                self._walk.enter(value, self._walk.root(value, f"{place}.{name}"), ALWAYS)
        if is_users_class(type(cls)):
            self._walk.enter(type(cls), self._walk.root(type(cls), type(cls).__qualname__), ALWAYS)

    def _attributes(self, value: Any, place: Place, needs: Names, skip: Iterable[str] = ()) -> None:
        table = table_of(value)
        if table is None:
            return
        self._walk.keep(table, place)
        if is_a(value, threading.local):
            self._walk.found.of_thread.add(id(table))
        # A copy: a list of the items makes objects, by which a collection may begin and write.
        for name, entry in dict.copy(table).items():
            if name not in skip:
                # Code of the standard library has the names of containers around others: an index is enough.
                is_around = is_a(value, _AROUND_CONTAINERS) and name in ("data", "maps")
                needed = needs if is_around else needs | {name}
                self._walk.enter(entry, place.child(How.ITEM, table, name, f"{place}.{name}"), needed)
        self._of_class(value, place)

    def _slots(self, value: Any, place: Place, needs: Names) -> None:
        for name, hidden in slots_of(value):
            how, key = (How.ATTRIBUTE, name) if hidden is None else (How.SLOT, hidden)
            here = place.child(how, value, key, f"{place}.{name}")
            self._walk.enter_place(here, needs | {name})

    def _of_class(self, value: Any, place: Place) -> None:
        """Plain values that the user's classes give to their instances."""
        hidden = set(table_of(value) or ())  # by what is nearer
        for cls in type(value).__mro__:
            if is_users_class(cls):
                self._walk.enter(cls, self._walk.root(cls, cls.__qualname__), ALWAYS)
                for name, entry in _data_of(cls):
                    if is_a(entry, PLAIN) and name not in hidden:
                        here = place.child(How.ATTRIBUTE, value, name, f"{place}.{name}")
                        self._walk.enter(entry, here, origin(cls) | {name})
            elif issubclass(cls, enum.Enum):
                self._walk.enter(cls, self._walk.root(cls, cls.__qualname__), ALWAYS)
            hidden |= vars(cls).keys()


def _data_of(cls: type) -> list[tuple[str, Any]]:
    """The attributes of a class that are data, not methods or descriptors."""
    return [
        (name, value)
        for name, value in vars(cls).items()
        if name[:2] != "__" and not callable(value) and not hasattr(type(value), "__get__")
    ]

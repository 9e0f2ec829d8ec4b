"""Objects and classes on a walk: of an object the attributes that were read, of a class what its objects may have found there.

    watched object    the attributes that were read, present or absent; its class
    other object      all attributes, since nobody saw which were read
    class             its functions and special methods, and data of names that were read anywhere

Code can read behind the back of an object's class (`object.__getattribute__`); where such code ran, objects count as not
watched: all of them, or those of the class whose method it is.
"""

from __future__ import annotations

import dis
import functools
import gc
import io
import operator
import sys
import threading
import types
from collections.abc import Collection
from types import CodeType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from treeplay.guards.conditions import Asked, Data
from treeplay.guards.containers import Table
from treeplay.guards.entries import hashed, is_found_on, matters, real_table, users_attributes
from treeplay.guards.reads.names import (
    ASKING,
    asks_its_own,
    computes_names,
    goes_behind,
    is_for_a_call,
    names_in,
    strings_within,
    takes_tables,
    values_within,
)
from treeplay.guards.reads.reads import WHOLE, ObjectReads, Reads
from treeplay.guards.walk.containers import Containers
from treeplay.guards.walk.kinds import WRAPPERS
from treeplay.guards.walk.walk import Walk
from treeplay.observe.lines import TORCH
from treeplay.torch_seam.autograd import counter_of_functions
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.layers import MODULE_TABLES
from treeplay.torch_seam.patched import ABSENT
from treeplay.torch_seam.scripts import ScriptModule
from treeplay.values.kinds import (
    CONTAINERS,
    HEAP,
    gives_items_in_python,
    is_a,
    is_iterator,
    keeps_table,
    module_of,
    slots_of,
    table_of,
)
from treeplay.values.records import held_in_record

_OURS = 2  # references to an object that nobody else refers to: that of `ObjectReads`, and the argument of the question


class Objects:
    """Objects with attributes and their classes, as a walk follows them."""

    def __init__(self, walk: Walk, containers: Containers) -> None:
        self._walk = walk
        self._containers = containers
        reads = walk.reads
        # Torch's own code asks a class for names that it spells out.
        ran = [code for code in reads.ran if not code.co_filename.startswith(TORCH)]
        callers = {id(code) for name in ASKING for code in reads.builtins.get(f"builtins.{name}", ())}
        self._asks_classes = any(
            takes_tables(code) or (computes_names(code) and (id(code) in callers or _hands_on(code))) for code in ran
        )
        self._asks_subclasses = _may_have_asked(reads, "__subclasses__")
        self._behind = [code for code in reads.ran if goes_behind(code)]
        # Else these read of their own objects alone.
        self._is_blind = not all(asks_its_own(code) and _class_of(code) for code in self._behind)
        self._classes: dict[type, None] = {}
        self._of_instances: set[type] = set()
        self._named: dict[type, None] = {}  # torch's classes of which no object was met

    def may_have_read(self, value: Any, name: str) -> bool:
        """Whether the run may have read this attribute of an object."""
        names = self._names_read(value)
        return name in names or WHOLE in names

    def instance(self, value: Any, label: str) -> None:
        """Follow an object of any class."""
        cls = type(value)
        if is_a(value, CONTAINERS):
            self._containers.contents(value, label)
        if module_of(cls) == "typing":
            return
        if module_of(cls).startswith("treeplay."):
            # A jitted program inside of this one runs as it is.
            self._walk.enter(getattr(value, "__wrapped__", None), label)
            self._kept_by_user(value, label)
            return
        if is_iterator(value) and not is_a(value, io.IOBase) and not gives_items_in_python(cls):
            if value is not counter_of_functions:  # nobody asks for the numbers of custom functions that a run makes
                self._walk.iterators.append((value, label))
            return
        table = table_of(value)
        if not cls.__flags__ & HEAP and not is_a(value, (*CONTAINERS, types.SimpleNamespace, BaseException)):
            self._foreign(value, label)
            if table is None:
                return
        # A guard would keep alive what only a weak reference leads to.
        if id(value) not in self._walk.weak:
            self._walk.dependencies.kinds.append((value, cls, label))
            # A `threading.local` has another one in each thread.
            if table is not None and keeps_table(cls) and not is_a(value, threading.local):
                self._walk.dependencies.attributes.append((value, table, label))
        self._of_instances.update(cls.__mro__)
        # Here is an object of it after all: its data counts.
        for base in self._named.keys() & self._of_instances:
            del self._named[base]
            self._data_of_class(base)
        self._walk.enter(cls, cls.__qualname__)
        if is_a(value, ScriptModule):  # whose methods read in C++
            self._walk.dependencies.data.append(Data(value, label))
            for name, part in value.named_children():
                self._walk.enter(part, f"{label}.{name}")
        if is_a(value, torch.optim.Optimizer):
            self._containers.groups_of(value)
        self._attributes(value, table, label)

    def _kept_by_user(self, program: Any, label: str) -> None:
        """Guard what a user keeps, or may come to keep, in attributes of a jitted function (`step.scale = 2`)."""
        if is_a(program, torch.nn.Module) or "__wrapped__" not in vars(program) or not self._walk.meet(vars(program)):
            return
        kept = users_attributes(program)
        own = frozenset(vars(program).keys() - kept.keys()).union(dir(type(program)))
        counts = functools.partial(_may_be_kept, own, frozenset(kept), self._walk.names, self._asks_classes)
        self._walk.dependencies.add_table(Table(vars(program), f"{label}.", matters=counts))
        for name, entry in kept.items():
            self._walk.enter(entry, f"{label}.{name}")

    def _attributes(self, value: Any, table: dict[str, Any] | None, label: str) -> None:
        names = self._names_read(value)
        self.slots(value, label, None if WHOLE in names else names)
        if table is None:
            return
        if WHOLE in names:
            self._walk.guard_table(table, f"{label}.", self._untaken(value, table))
            return
        kept = tuple(name for name in names if name in table or not is_found_on(type(value), name))
        if kept:
            self._walk.dependencies.add_table(Table(table, f"{label}.", kept))
            for name in kept:
                if name in table:
                    # The entries of these tables a user writes as attributes of the module.
                    is_part = is_a(value, torch.nn.Module) and name in MODULE_TABLES
                    self._walk.enter(table[name], f"{label}." if is_part else f"{label}.{name}")

    def _untaken(self, value: Any, table: dict[str, Any]) -> set[str]:
        """The iterators in a namespace, whose reads nobody sees, from which the run took nothing: no code has their names."""
        if type(value) is not types.SimpleNamespace or self._asks_classes:
            return set()
        return {name for name, entry in table.items() if is_iterator(entry) and name not in self._walk.names}

    def _names_read(self, value: Any) -> dict[str, None]:
        """The attributes of an object that may have been read; among them `WHOLE` if that is any."""
        reads = self._walk.reads
        if is_a(value, threading.Thread) and not reads.is_watched(value):
            return {}  # a library's, which its own thread writes to meanwhile, as the monitor of progress bars does
        if not reads.is_watched(value) or self._is_blind or self._goes_behind_itself(type(value)):
            return {WHOLE: None}
        return reads.names(value, also_assigned=self._walk.also_assigned)

    def slots(self, value: Any, label: str, names: dict[str, None] | None = None) -> None:
        """Guard and follow what the slots of an object hold, or those of some names."""
        for name, hidden in slots_of(value):
            if hidden is not None:  # which code of the base class reads behind that name
                ask = functools.partial(_in_slot, hidden, value)
                self._walk.follow(Asked(ask, f"{label}.{name}", (id(value), hashed(hidden))))
            elif names is None or name in names:
                ask = functools.partial(getattr, value, name, ABSENT)
                self._walk.follow(Asked(ask, f"{label}.{name}", (id(value), name), attribute=(value, name)))

    def _foreign(self, value: Any, label: str) -> None:
        """An object of an extension's: what it is made of is entered, as far as it tells the garbage collector."""
        for found in gc.get_referents(value):
            if not is_a(found, type):
                self._walk.enter(found, label)

    def class_(self, cls: type, _: str) -> None:
        """Follow a class, its bases and its metaclass."""
        if cls.__flags__ & HEAP and cls.__bases__ != (object,):  # nobody can give such a class other bases
            self._walk.dependencies.orders[cls] = cls.__mro__
        for base in cls.__mro__:
            if base in self._classes or not base.__flags__ & HEAP or module_of(base).startswith("treeplay."):
                continue
            self._classes[base] = None
            self._walk.meet(base)
            self._data_of_class(base)
        metaclass: type = type(cls)
        if metaclass is not type and metaclass.__flags__ & HEAP:
            self._walk.enter(metaclass, metaclass.__qualname__)

    def enter_asked_for(self) -> None:
        """Enter all data of the classes, if what asks by other names than code has was met: an `attrgetter`, or `getattr` in a
        partial or under another name."""
        walk = self._walk
        if not self._asks_classes and not walk.seen.keys().isdisjoint(map(id, (*ASKING.values(), operator.attrgetter))):
            self._asks_classes = True
            known = {id(real_table(cls)) for cls in self._classes}
            walk.dependencies.tables = [table for table in walk.dependencies.tables if id(table.holder) not in known]
            for cls in list(self._classes):
                self._data_of_class(cls)

    def _data_of_class(self, cls: type) -> None:
        if cls is RemovableHandle:  # which counts all hooks of the process
            return
        asks = self._asks_classes
        if asks and cls not in self._of_instances and module_of(cls).partition(".")[0] == "torch":
            self._named[cls] = None
            asks = False
        names = self._walk.names
        counts = functools.partial(matters, names, asks)
        if self._asks_subclasses and module_of(cls).partition(".")[0] != "torch":
            self._subclasses_of(cls)
        table = real_table(cls)
        self._walk.dependencies.add_table(Table(table, f"{cls.__qualname__}.", matters=counts))
        for name, entry in list(table.items()):
            is_data = not is_a(entry, (*WRAPPERS, property, types.FunctionType))
            if counts(name) and (not is_data or asks or name in names):
                self._walk.enter(entry, f"{cls.__qualname__}.{name}")

    def _subclasses_of(self, cls: type) -> None:
        """The classes that are derived from a class: no attribute and no container that a program can see holds them."""
        asked = Asked(lambda: tuple(type.__subclasses__(cls)), f"{cls.__qualname__}.__subclasses__()", is_fresh=True)
        self._walk.dependencies.asked.append(asked)
        self._walk.enter_each(asked.recorded, asked.label)

    def _goes_behind_itself(self, cls: type) -> bool:
        """Whether a method of `cls` that ran asks for attributes of its object in a way that the class is not told of."""
        # By its name: what is found under the method's may be a property, or a decorator's.
        return any(_class_of(code) == base.__qualname__ for code in self._behind for base in cls.__mro__)

    def enter_unfound(self) -> None:
        """Enter objects whose attributes were read though no path leads to them, unless the run made them."""
        for key, noted in list(self._walk.reads.objects.items()):
            if key in self._walk.seen or is_a(noted.object, type) or not noted.read:
                continue
            if is_a(noted.object, types.ModuleType):
                self._walk.enter(noted.object, noted.object.__name__)
            elif sys.getrefcount(noted.object) > _OURS and not _is_of_the_run(noted):
                self._walk.enter(noted.object, f"a {type(noted.object).__name__}")


def _hands_on(code: CodeType) -> bool:
    """Whether code hands `getattr` or the like on, as to `reduce`: then no code in Python calls it."""
    return any(step.argval in ASKING and not is_for_a_call(step) for step in dis.get_instructions(code))


def _may_have_asked(reads: Reads, name: str) -> bool:
    """Whether the run may have called this method of classes. Code that names it need not have come to the call; but where it
    takes the method as a value, C code may have called it, of which nothing tells."""
    codes = [code for code in reads.ran if name in names_in(code)]
    taken = any(name in values_within(code) | strings_within(code) for code in codes)
    return reads.code is None or taken or f"type.{name}" in reads.methods


def _may_be_kept(own: frozenset[str], kept: frozenset[str], names: Collection[str], asks: bool, name: str) -> bool:
    """Whether an attribute of a jitted function counts: what a user `kept` there, and what is put there later under a name that
    the run may have asked for and that is not our `own`."""
    return name in kept or (name not in own and (asks or name in names))


def _in_slot(slot: types.MemberDescriptorType, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return ABSENT


def _class_of(code: types.CodeType) -> str:
    """The qualified name of the class in whose body a function is defined; empty for others."""
    owner = code.co_qualname.rpartition(".")[0]
    return owner if owner.rpartition(".")[2] != "<locals>" else ""


def _is_of_the_run(noted: ObjectReads) -> bool:
    """Whether an object holds nothing but what the run put into it, or something that only the run can have made."""
    table = table_of(noted.object) or {}
    # What is put into its dictionary past its attributes is assigned by nobody.
    if table and (noted.was_empty or all(noted.assigned.get(name) is ABSENT for name in table)):
        return True
    values = [held for _, held in held_in_record(noted.object)]
    values += [item for value in values if is_a(value, dict) for item in value.values()]
    values += [item for value in values if is_a(value, (list, tuple)) for item in value]
    return any(is_a(value, (FakeTensor, torch.SymFloat, torch.SymInt)) for value in values)

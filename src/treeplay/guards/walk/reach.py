"""Reach: from what a traced run read to the guards over it.

A run does what its code and what it read make it do. So the walk starts where the run started (the program, its arguments'
objects, the code that ran) and goes on through what was read, and through nothing else:

    function that ran     its code, defaults, closure, and the globals that its code names     functions, namespaces
    watched object        the attributes that were read, present or absent; its class          objects
    other object          all attributes, since nobody saw which were read
    class                 its functions and special methods, and data of names that were read anywhere
    container             all of it, since Python does not tell which items were read          containers
    what holds otherwise  tensors, weak references, context variables, memory, …               holders

An attribute that nobody read cannot change what the run does, and is not entered. Objects that were read but are found by no
path are guarded all the same. The walk runs after the trace, when everything is as the run found it.
"""

from __future__ import annotations

import contextvars
import functools
import linecache
import logging
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.guards.dependencies import Dependencies
from treeplay.guards.entries import entry_of
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk import holders as walk_holders
from treeplay.guards.walk.containers import Containers, is_plain
from treeplay.guards.walk.functions import Functions
from treeplay.guards.walk.kinds import VIEWS, WRAPPERS, memories
from treeplay.guards.walk.namespaces import Namespaces
from treeplay.guards.walk.objects import Objects
from treeplay.guards.walk.walk import Walk
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.values.kinds import CONTAINERS, has_attributes, is_a, numpys
from treeplay.values.same import is_same


@dataclass(frozen=True, slots=True)
class Findings:
    """What a walk found."""

    dependencies: Dependencies
    changed: tuple[tuple[Any, str, Any], ...]
    """Attributes that still are other than before the run: the object, the name, and what was there."""
    large: tuple[tuple[Any, str], ...]
    """Memory that takes too long to compare on each call."""
    iterators: tuple[tuple[Any, str], ...]
    met: Mapping[int, Any]
    """All that was met, by its `id`."""
    caching: tuple[Any, ...]
    """The functions among it that keep what they have given (`functools.lru_cache`)."""
    left_out: frozenset[int]
    """What is guarded by others, by its `id`, and has been met by no path."""


class Reach:
    """One walk over what was read: what to leave out of it, and the walk itself, once."""

    def __init__(self, reads: Reads, *, also_assigned: bool = False) -> None:
        self._walk = walk = Walk(reads, also_assigned=also_assigned)
        self._left_out = set[int]()
        self._namespaces = Namespaces(walk)
        self._functions = functions = Functions(walk, self._namespaces)
        self._containers = Containers(walk)
        self._objects = Objects(walk, self._containers)
        way = functools.partial  # none of this walk's own methods: in a cycle it would keep what it met alive
        self._ways: tuple[tuple[Any, Callable[[Any, str], None]], ...] = (
            (torch.Tensor, way(_tensor, way(walk_holders.tensor, walk), self._objects)),
            (logging.Logger, way(walk_holders.logger, walk)),
            (types.ModuleType, self._namespaces.module),
            (type, self._objects.class_),
            (VIEWS, self._containers.view),
            (functools._lru_cache_wrapper, functions.cached),
            (types.FunctionType, functions.function),
            (types.MethodType, functions.method),
            ((types.BuiltinFunctionType, types.MethodWrapperType), functions.builtin),
            (WRAPPERS, functions.wrapper),
            (property, way(_both, functions.property_, self._objects)),
            (types.CellType, functions.cell),
            (contextvars.ContextVar, way(walk_holders.context_variable, walk)),
            (threading.local, way(walk_holders.of_thread, walk)),
            (weakref.ProxyTypes, way(walk_holders.proxy, walk)),
            (numpys("generic"), _nothing),
            (memories(), way(_both, way(walk_holders.memory, walk), self._objects)),
        )
        self.leave_out(linecache.cache)  # lines of files, generated ones too, which a warning shows

    def leave_out(self, value: Any) -> None:
        """Guard nothing of `value` itself: a container of the arguments, which the call takes apart each time."""
        if self._walk.meet(value):
            self._left_out.add(id(value))

    def may_have_read(self, value: Any, name: str) -> bool:
        """Whether the run may have read this attribute of an object."""
        return self._objects.may_have_read(value, name)

    def walk(self, roots: Iterable[tuple[Any, str]], given: Iterable[Any] = ()) -> Findings:
        """Enter `roots`, each with its label, and all that follows; raises `TooMuch`."""
        walk, found = self._walk, self._walk.dependencies
        for value, label in (*roots, (torch.Tensor, "Tensor")):
            walk.enter(value, label)
        self._go_on()
        self._functions.enter_unfound()
        self._go_on()
        for value in given:  # which no path has led to
            self.leave_out(value)
        self._objects.enter_unfound()
        self._go_on()
        self._namespaces.enter_imports()
        self._go_on()
        self._objects.enter_asked_for()
        self._go_on()
        # Last of all: now no name is added any more.
        self._namespaces.guard()
        found.twice = walk.twice
        for key in walk.twice & found.containers.keys():
            found.containers[key].may_be_replaced = False  # a program may see that two places hold one object
        caching = tuple(value for value in walk.seen.values() if is_a(value, functools._lru_cache_wrapper))
        return Findings(
            found,
            self._changed(),
            tuple(walk.large),
            tuple(walk.iterators),
            walk.seen,
            caching,
            frozenset(self._left_out),
        )

    def _go_on(self) -> None:
        while self._walk.is_waiting or self._namespaces.enter_more():
            while self._walk.is_waiting:
                self._visit(*self._walk.next())

    def _visit(self, value: Any, label: str) -> None:
        for kind, follow in self._ways:
            if is_a(value, kind):
                follow(value, label)
                return
        if is_a(value, CONTAINERS) and is_plain(value):
            self._containers.contents(value, label)
            return
        # The rest are objects with attributes, whatever they are besides.
        if is_a(value, functools.partial):
            self._functions.partial(value, label)
        elif is_a(value, weakref.ref):
            walk_holders.weak_reference(self._walk, value, label)
            if type(value) is weakref.ref:  # not of a class of its own, which may do more when it is called
                return
        self._objects.instance(value, label)

    def _changed(self) -> tuple[tuple[Any, str, Any], ...]:
        found = []
        objects = self._walk.reads.objects
        for key in self._walk.seen.keys() & objects.keys():
            noted = objects[key]
            for name, before in noted.assigned.items():
                now = entry_of(noted.object, name)
                if now is not before and not is_same(now, before):
                    found.append((noted.object, name, before))
        return tuple(found)


def _both(follow: Callable[[Any, str], None], objects: Objects, value: Any, label: str) -> None:
    """Follow a value as what it is, and as an object, if it has attributes: an array or a property of a class of the user's."""
    follow(value, label)
    if has_attributes(value):
        objects.instance(value, label)


def _tensor(follow: Callable[[Any, str], None], objects: Objects, value: Any, label: str) -> None:
    """Follow a tensor, of which nobody sees what is read, and what a class derived from that of parameters has in slots."""
    follow(value, label)
    if not is_a(value, FakeTensor):
        objects.slots(value, label)


def _nothing(_: Any, __: str) -> None:
    """A number of NumPy's is a value: nothing follows from it."""

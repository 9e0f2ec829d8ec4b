"""What objects, classes, functions and modules are made of besides data, as it was before a trace: the class of an object and
the dictionary that its attributes lie in, the bases and methods of a class, the code and defaults of a function, the names in a
namespace.

The class of an object is a slot, as an attribute is: each replay assigns it. The rest no replay assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

from treeplay.guards.entries import is_of_the_program, matters
from treeplay.observe.shown import ShownText
from treeplay.sandbox.teardown import each
from treeplay.trace.survey.found import GONE, Survey
from treeplay.values.kinds import HEAP, is_a, keeps_table, table_of
from treeplay.values.place import How, Place, root

_OF_FUNCTIONS = ("__code__", "__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__doc__")
Part = tuple[Place, Any, Any]
"""Where it is, what was there, and what is there now; `GONE` for nothing."""


class PartsBefore:
    """The parts of what a survey found, as they are when this is made, but for those that are among its cells."""

    def __init__(self, found: Survey) -> None:
        self._found = found
        self._cells = {(id(place.holder), place.key) for place, _ in found.cells}
        kept = [value for value in found.kept if _may_become_another(value)]
        self._objects = [(value, type(value), table_of(value) if keeps_table(type(value)) else None) for value in kept]
        kept = [value for value in found.kept if is_a(value, (type, FunctionType))]
        self._others = [(value, self._parts_of(value)) for value in (*kept, *found.namespaces.values())]

    def take_in(self, namespace: dict[str, Any]) -> None:
        """Note a namespace that the run is about to be given."""
        if all(value is not namespace for value, _ in self._others):
            self._others.append((namespace, self._parts_of(namespace)))

    def changed(self, is_ours: Callable[[Place, Any], bool]) -> Iterator[Part]:
        """The parts that are others now by the program's doing, to be told: only of classes a replay can make what they are."""
        for place, before, now in self._changes(is_ours):
            if place.key == "__class__":
                yield place, before, now
            else:
                yield place, ShownText("what it was"), ShownText("something else")

    def put_back(self, is_ours: Callable[[Place, Any], bool]) -> None:
        """Undo what the program has done."""
        each([*self._changes(is_ours)], _put_back)

    def _changes(self, is_ours: Callable[[Place, Any], bool]) -> Iterator[Part]:
        found = self._found
        for value, cls, table in self._objects:
            now_of: dict[str, tuple[Any, Any]] = {"__class__": (cls, type(value))}
            if table is not None:
                now_of["__dict__"] = (table, table_of(value))
            for name, (before, now) in now_of.items():
                if now is not before:
                    of = (
                        found.objects.get(id(value))
                        or found.container_places.get(id(value))
                        or root(value, cls.__name__)
                    )
                    place = of.child(How.ATTRIBUTE, value, name, f"{of}.{name}")
                    if is_ours(place, now):
                        yield place, before, now
        for value, parts in self._others:
            now = self._parts_of(value)
            for name in [name for name in {**parts, **now} if parts.get(name, GONE) is not now.get(name, GONE)]:
                is_namespace = is_a(value, dict)
                of = root(value, str(value.get("__name__", "globals")) if is_namespace else value.__qualname__)
                place = of.child(How.ITEM if is_namespace else How.ATTRIBUTE, value, name, f"{of}.{name}")
                if is_ours(place, now.get(name, GONE)):
                    yield place, parts.get(name, GONE), now.get(name, GONE)

    def _parts_of(self, value: Any) -> dict[str, Any]:
        if is_a(value, FunctionType):
            return {name: getattr(value, name) for name in _OF_FUNCTIONS}
        if is_a(value, dict):
            entries = {name: entry for name, entry in dict.copy(value).items() if is_of_the_program(name)}
        else:
            entries = {name: entry for name, entry in dict(vars(value)).items() if matters((), True, name)}
            entries |= {"__bases__": value.__bases__}
        return {name: entry for name, entry in entries.items() if (id(value), name) not in self._cells}


def _may_become_another(value: Any) -> bool:
    """Whether its class can be assigned; that of a module is another one while it is watched."""
    return bool(type(value).__flags__ & HEAP) and not is_a(value, ModuleType)


def _put_back(place: Place, before: Any, _: Any) -> None:
    if place.how is How.ITEM:
        if before is GONE:
            dict.pop(place.holder, place.key, None)
        else:
            dict.__setitem__(place.holder, place.key, before)
        return
    # Past what its own class, or a metaclass, does when something is assigned.
    base: Any = type if is_a(place.holder, type) and place.key != "__class__" else object
    if before is GONE:
        base.__delattr__(place.holder, place.key)
    else:
        base.__setattr__(place.holder, place.key, before)

"""Read hooks: classes and modules whose reads and stores of attributes pass by whoever notes them.

A class gets a `__getattribute__`, a `__setattr__` and a `__delattr__` that tell the `Notes` (`send_to`) and go on to what was
there before; modules are given a class that does so (`watch_modules`). Which methods to replace, in which class of those that
the objects inherit from, is found once for a set of classes; `ReadHooks.put_in` puts them there each time, and `take_out` puts
back what was there.
"""

from __future__ import annotations

import enum
import itertools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from operator import itemgetter
from types import CodeType, ModuleType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from treeplay.sandbox.teardown import each
from treeplay.torch_seam.dynamo import skip_code, version_of_table
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.patched import ABSENT, stand_in
from treeplay.values.kinds import HEAP, module_of

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
LEFT_ALONE = (torch.Tensor, type, BaseException, enum.Enum, TorchDispatchMode, TorchFunctionMode)
_HOOKED = ("__getattribute__", "__setattr__", "__delattr__")
_OF_MIXINS = ("abc", "collections.abc", "typing")


class Notes(Protocol):
    """Who is told of reads and stores, two frames below the code that asks."""

    def note(self, value: Any, name: str) -> None:
        """`value` was asked for `name`."""

    def note_store(self, value: Any, name: str) -> None:
        """`name` of `value` will be assigned or deleted."""


_noting: Notes | None = None


def send_to(notes: Notes | None) -> None:
    """Tell these of all reads and stores from here on, or nobody."""
    global _noting
    _noting = notes


Hook = tuple[type, str, Any, Any]
"""A class, the name of the method that is replaced, what is there in the class itself (`ABSENT`: nothing), what notes."""


class ReadHooks:
    """What has to be replaced so that all reads and stores of these classes' instances are noted. Made once, put in often."""

    def __init__(self, classes: Iterable[type]) -> None:
        self._classes = list(classes)
        self._places: dict[type, list[tuple[type, str]]] = {}
        self._hooks: dict[tuple[type, str], Hook] = {}
        self._asked: list[type] = []  # each class once for each method
        self._found: list[Any] = []  # what each class has for it

    def put_in(self, changed: list[Hook]) -> set[type]:
        """Replace the methods, and add to `changed` what was replaced. Gives the classes that are watched from now on."""
        if not self._asked or self._found != self._resolved():  # or a class has other methods than when hooks were made
            self._make()
        hooks = [*self._hooks.values()]
        changed += hooks  # before they are there: an interrupt in between would leave them
        try:
            _set_all(hooks)
        except TypeError:
            self._leave_out({hook[:2] for hook in hooks if not _can_be_set(hook)})
        return set(self._places)

    def _make(self) -> None:
        self._places, self._hooks = {}, {}
        for cls in self._classes:
            places = _places_of_hooks(cls)
            if places:
                self._places[cls] = places
                for owner, name in places:
                    before = vars(owner).get(name, ABSENT)
                    if not getattr(before, "is_treeplays", False):  # else other hooks are in that class
                        self._hooks[owner, name] = owner, name, before, _hook_for(owner, name, before)
        self._asked = [cls for cls in self._places for _ in _HOOKED]
        self._found = self._resolved()

    def _leave_out(self, failed: set[tuple[type, str]]) -> None:
        """Try these no more: an extension lets nobody replace their methods."""
        self._places = {cls: places for cls, places in self._places.items() if failed.isdisjoint(places)}
        self._hooks = {place: hook for place, hook in self._hooks.items() if place not in failed}
        found = zip(self._asked, self._found, strict=True)
        self._found = [method for cls, method in found if cls in self._places]
        self._asked = [cls for cls in self._asked if cls in self._places]

    def _resolved(self) -> list[Any]:
        return [*map(type.__getattribute__, self._asked, itertools.cycle(_HOOKED))]


def _places_of_hooks(cls: type) -> list[tuple[type, str]]:
    if issubclass(cls, LEFT_ALONE) or cls is ModuleType or module_of(cls).startswith("treeplay."):
        return []
    places = [(place, name) for name in _HOOKED if (place := _place_of_hook(cls, name)) is not None]
    return places if len(places) == len(_HOOKED) else []


def _place_of_hook(cls: type, name: str) -> type | None:
    """The class in which `name` can be replaced for the instances of `cls`: where they find it, else the last one before."""
    place = None
    for base in cls.__mro__:
        is_open = bool(base.__flags__ & HEAP) and not base.__flags__ & _IMMUTABLE
        if name in vars(base):
            return base if is_open else place  # in an extension's class, as `dict`: the mixins after it are not asked
        # A change of `Generic` or `ABC` would be one of hundreds of classes, which takes a millisecond.
        if is_open and (place is None or module_of(base) not in _OF_MIXINS):
            place = base
    return place


def _hook_for(cls: type, name: str, before: Any) -> Any:
    hook = _reader(cls, before) if name == "__getattribute__" else _storer(cls, name, before)
    stand_in(hook, before)  # guards see what was there
    return hook


def _set_all(hooks: Collection[Hook]) -> None:
    """Past the metaclass, which may have a `__setattr__` of its own, and without Python in between: there are hundreds."""
    deque(map(type.__setattr__, *_columns(hooks, 0, 1, 3)), maxlen=0)


def _can_be_set(hook: Hook) -> bool:
    try:
        _set_all((hook,))
    except TypeError:
        return False
    return True


def take_out(hooks: Collection[Hook]) -> None:
    """Put back what classes had where these hooks are. Some may not have come to be there."""
    absent = [hook for hook in hooks if hook[2] is ABSENT]
    replaced = [hook for hook in hooks if hook[2] is not ABSENT]
    try:  # without Python in between, where an interrupt would leave the rest
        deque(map(type.__setattr__, *_columns(replaced, 0, 1, 2)), maxlen=0)
        deque(map(type.__delattr__, *_columns(absent, 0, 1)), maxlen=0)
    except Exception:
        each(((cls, name, before) for cls, name, before, note in hooks if vars(cls).get(name) is note), _put_back)


def _put_back(cls: type, name: str, before: Any) -> None:
    if before is ABSENT:
        type.__delattr__(cls, name)
    else:
        type.__setattr__(cls, name, before)


def _columns(hooks: Collection[Hook], *which: int) -> list[Any]:
    return [map(itemgetter(k), hooks) for k in which]


def _reader(cls: Any, before: Any) -> Callable[[Any, str], Any]:
    if before is ABSENT:

        def __getattribute__(self: Any, name: str) -> Any:
            if (notes := _noting) is not None:
                notes.note(self, name)
            # Looked up anew: in the order of the object's own class, other classes may come between `cls` and its bases.
            return super(cls, self).__getattribute__(name)

    else:

        def __getattribute__(self: Any, name: str) -> Any:
            if (notes := _noting) is not None:
                notes.note(self, name)
            return before(self, name)

    _hide(__getattribute__.__code__)
    return __getattribute__


def _storer(cls: Any, kind: str, before: Any) -> Callable[..., None]:
    def store(self: Any, name: str, *value: Any) -> None:
        if (notes := _noting) is not None:
            notes.note_store(self, name)
        if before is ABSENT:
            getattr(super(cls, self), kind)(name, *value)
        else:
            before(self, name, *value)

    _hide(store.__code__)
    return store


@lru_cache(maxsize=8)
def _hide(code: CodeType) -> None:
    """Have Dynamo take no notice of a hook. For each frame that it looks at it asks attributes of the compiler that the user
    chose, whose class may have hooks: it would look at their frames, and so on without end."""
    skip_code(code, with_callees=True)


def watch_modules(further: Iterable[ModuleType], changed: list[ModuleType]) -> None:
    """Have the reads and stores of these modules, and of all that are loaded, noted, and add them to `changed`."""
    watched, compilers = _class_of_watched_modules(), _compilers_modules(version_of_table(sys.modules))
    for module in (*sys.modules.values(), *further):
        if type(module) is ModuleType and id(module) not in compilers:
            changed.append(module)
            module.__class__ = watched


@lru_cache(maxsize=1)
def _class_of_watched_modules() -> type[ModuleType]:
    class Watched(ModuleType):
        __getattribute__ = _reader(ModuleType, ModuleType.__getattribute__)
        __setattr__ = _storer(ModuleType, "__setattr__", ModuleType.__setattr__)
        __delattr__ = _storer(ModuleType, "__delattr__", ModuleType.__delattr__)

    return Watched


# Anew whenever `sys.modules` has changed: the argument is its version.
@lru_cache(maxsize=1)
def _compilers_modules(_: int) -> frozenset[int]:
    return frozenset(id(module) for name, module in loaded_modules().items() if name.startswith(_COMPILERS))


_COMPILERS = ("triton", "torch._inductor")
"""Modules that keep their class, for they may compile in another thread meanwhile: Triton takes a global of a kernel for a
module only if its class is exactly that of modules."""


def put_modules_back(modules: list[ModuleType]) -> None:
    """Take modules out of the watched class."""
    put_back = ModuleType.__setattr__
    try:  # without Python in between, where an interrupt would leave the rest
        deque(map(put_back, modules, itertools.repeat("__class__"), itertools.repeat(ModuleType)), maxlen=0)
    except Exception:
        each(((module, "__class__", ModuleType) for module in modules), put_back)


def loaded_modules() -> dict[str, ModuleType]:
    """The loaded modules by name. Other threads import meanwhile: a list of the items makes objects, by which a collection may
    begin and run Python code; a copy makes one."""
    return sys.modules.copy()

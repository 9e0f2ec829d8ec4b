"""Reads: which attributes of which objects a block read and assigned, by watching the reads themselves.

For the block, the classes of objects in reach have a `__getattribute__` and a `__setattr__` that note the name and go on to
what was there before, and Python modules are of a class that does so. Whatever asks for an attribute passes there:
instructions, `getattr` with a computed name, `vars`, `hasattr`, `attrgetter`, `copy`, C code. So what was not noted was not
read. Objects of classes that cannot be changed (those of extensions) are not watched: all of them counts as read.

`read.__dict__` is a read of all attributes, unless the instruction after it takes one entry by a constant name.
"""

from __future__ import annotations

import dis
import enum
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from sys import _getframe  # by name: modules are watched while these are called
from threading import get_ident
from types import CodeType, ModuleType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from treeplay.guards.ran import noting
from treeplay.sandbox.collection import without_callbacks
from treeplay.sandbox.teardown import Teardown, each
from treeplay.torch_seam.dynamo import skip_code, version_of_table
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.patched import ABSENT, stand_in
from treeplay.values.kinds import is_a

WHOLE = "__dict__"
"""Stands among the names read of an object for all of them."""

_WHOLE_BY = frozenset(
    {"__getstate__", "__reduce__", "__reduce_ex__", "__dir__"}
)  # C code that goes on to read everything
_HEAP = 1 << 9
_IMMUTABLE = 1 << 8
_LEFT_ALONE = (torch.Tensor, type, BaseException, enum.Enum, TorchDispatchMode, TorchFunctionMode)
_HOOKED = ("__getattribute__", "__setattr__", "__delattr__")
_OF_MIXINS = ("abc", "collections.abc", "typing")


class ObjectReads:
    """What was read and assigned of one object: names in the order of their first use."""

    __slots__ = ("assigned", "object", "read")

    def __init__(self, value: Any) -> None:
        self.object = value
        self.read: dict[str, None] = {}
        self.assigned: dict[str, Any] = {}  # with what was there before the first time


class Reads:
    """A context: inside it, this thread's reads and stores of attributes are noted, and the code that runs."""

    def __init__(
        self, classes: Iterable[type], modules: Iterable[ModuleType] = (), standing: ReadHooks | None = None
    ) -> None:
        self.objects: dict[int, ObjectReads] = {}
        self.code: dict[int, CodeType] | None = {}  # None: not known, so that any may have run
        self.builtins: dict[str, list[CodeType]] = {}  # builtin functions that were called, with their callers
        self.methods: set[str] = set()  # of classes in C, as `Random.random`, that were called
        self.messages: set[str] = set()  # the methods of loggers that were given a message and took it
        self.watched: set[type] = set()
        self._hooks = [hooks for hooks in (standing, ReadHooks(classes)) if hooks is not None]
        self._changed: list[Hook] = []
        self._modules: list[ModuleType] = []
        self._further = list(modules)  # which may be among those that are loaded
        self._watched_modules: set[int] = set()
        self._quiet = without_callbacks()  # which run at any moment, and are none of the program's
        self._ran = noting()
        self._thread = 0
        self._is_on = False

    def __enter__(self) -> Reads:
        self._thread = get_ident()
        try:
            for hooks in self._hooks:
                self.watched |= hooks.put_in(self._changed)
            self._watch_modules()
        except BaseException:
            self._put_back()
            raise
        self._quiet.__enter__()
        self._ran.start()
        self._is_on = True
        _watching.append(self)
        _innermost_notes()
        return self

    def __exit__(self, *_: Any) -> None:
        self._is_on = False
        _watching.remove(self)
        _innermost_notes()
        steps = Teardown()
        steps.add("putting classes and modules back", self._put_back)
        steps.add("putting the collector's callbacks back", partial(self._quiet.__exit__, None, None, None))
        steps.add("leaving the interpreter's events", self._ran.stop)
        error = steps.run()
        if error is not None:
            raise error
        self.objects = {
            key: noted
            for key, noted in self.objects.items()
            if type(noted.object).__module__ not in _MODULES_ON_THE_WAY
        }
        self.code = None
        if self._ran.is_complete:
            self.code = {key: code for key, code in self._ran.code().items() if not _is_ours(code)}
            for name, callers in self._ran.builtins().items():
                own = [code for code in callers if not _is_ours(code)]
                if own:
                    self.builtins[name] = own
            self.methods = self._ran.methods()
            self.messages = self._ran.messages()

    @property
    def is_noting(self) -> bool:
        """Whether what runs now counts as the program."""
        return self._is_on

    def pause(self) -> bool:
        """Note nothing until `resume`; tells whether it noted before."""
        was_on = self._is_on
        if was_on and get_ident() == self._thread:
            self._is_on = False
            _innermost_notes()
            self._ran.pause()
            return True
        return False

    def resume(self) -> None:
        """Go on noting, after a `pause` that said it had."""
        self._is_on = True
        _innermost_notes()
        self._ran.resume()

    def is_watched(self, value: Any) -> bool:
        """Whether every read of an attribute of `value` was noted."""
        cls = type(value)
        return id(value) in self._watched_modules if cls is ModuleType else cls in self.watched

    def names(self, value: Any, *, also_assigned: bool = False) -> dict[str, None]:
        """The attributes of `value` that were read, or only assigned."""
        noted = self.objects.get(id(value))
        if noted is None:
            return {}
        return {**noted.read, **dict.fromkeys(noted.assigned)} if also_assigned else noted.read

    def forget(self, but: Iterable[Any] = ()) -> None:
        """Drop the objects that were met, but for some, and all that attributes held before."""
        known = {id(value) for value in but}
        self.objects = {key: noted for key, noted in self.objects.items() if key in known}
        for noted in self.objects.values():
            noted.assigned = dict.fromkeys(noted.assigned)

    # --- noting ---------------------------------------------------------------------------------------------

    def _noted(self, value: Any) -> ObjectReads:
        noted = self.objects.get(id(value))
        if noted is None:
            noted = self.objects[id(value)] = ObjectReads(value)
        return noted

    def _note(self, value: Any, name: str) -> None:
        if not self._is_on or get_ident() != self._thread:
            return
        frame = _getframe(2)
        if _is_ours(frame.f_code):
            return
        if name == WHOLE:
            self.pause()
            name = _entry_taken(frame.f_code, frame.f_lasti)
            self.resume()
        elif name in _WHOLE_BY:
            name = WHOLE
        noted = self._noted(value)
        if name not in noted.assigned:  # what a program reads after it has assigned it is its own
            noted.read[name] = None

    def _note_store(self, value: Any, name: str) -> None:
        if self._is_on and get_ident() == self._thread:
            if is_a(value, ModuleType) and _is_ours(_getframe(2).f_code):  # an import
                return
            assigned = self._noted(value).assigned
            if name not in assigned:
                assigned[name] = entry_of(value, name)

    # --- classes and modules ----------------------------------------------------------------------------------

    def _watch_modules(self) -> None:
        watched, compilers = _class_of_watched_modules(), _compilers_modules(version_of_table(sys.modules))
        for module in (*sys.modules.values(), *self._further):
            if type(module) is ModuleType and id(module) not in compilers:
                self._modules.append(module)
                module.__class__ = watched
        self._watched_modules = {*map(id, self._modules)}

    def _put_back(self) -> None:
        modules, self._modules = self._modules, []
        changed, self._changed = self._changed[::-1], []
        steps = Teardown()
        steps.add("putting classes back", lambda: each(changed, _take_out))
        steps.add("putting modules back", lambda: _put_modules_back(modules))
        error = steps.run()
        if error is not None:
            raise error


@lru_cache(maxsize=1)
def _class_of_watched_modules() -> type[ModuleType]:
    class Watched(ModuleType):
        __getattribute__ = _reader(ModuleType, ModuleType.__getattribute__)
        __setattr__ = _storer(ModuleType, "__setattr__", ModuleType.__setattr__)
        __delattr__ = _storer(ModuleType, "__delattr__", ModuleType.__delattr__)

    return Watched


@lru_cache(maxsize=1)
def _compilers_modules(_: int) -> frozenset[int]:
    return frozenset(id(module) for name, module in _loaded().items() if name.startswith(_COMPILERS))


def _loaded() -> dict[str, ModuleType]:
    """The loaded modules by name. Other threads import meanwhile: a list of the items makes objects, by which a collection may
    begin and run Python code; a copy makes one."""
    return sys.modules.copy()


def _put_modules_back(modules: list[ModuleType]) -> None:
    put_back = ModuleType.__setattr__
    try:  # without Python in between, where an interrupt would leave the rest
        deque(map(put_back, modules, itertools.repeat("__class__"), itertools.repeat(ModuleType)), maxlen=0)
    except Exception:
        each(((module, "__class__", ModuleType) for module in modules), put_back)


_COMPILERS = ("triton", "torch._inductor")
"""Modules that keep their class, for they may compile in another thread meanwhile: Triton takes a global of a kernel for a
module only if its class is exactly that of modules."""

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
        """Replace the methods, and add to `changed` what was replaced. The classes that are watched from now on."""
        if not self._asked or self._found != self._resolved():  # or a class has other methods than when hooks were made
            self._make()
        failed = set()
        for place, hook in self._hooks.items():
            cls, name, _, note = hook
            try:
                type.__setattr__(cls, name, note)
            except TypeError:
                failed.add(place)
            else:
                changed.append(hook)
        if failed:
            self._leave_out(failed)
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
        """Try no more: these classes are of an extension's own kind."""
        self._places = {cls: places for cls, places in self._places.items() if failed.isdisjoint(places)}
        self._hooks = {place: hook for place, hook in self._hooks.items() if place not in failed}
        found = zip(self._asked, self._found, strict=True)
        self._found = [method for cls, method in found if cls in self._places]
        self._asked = [cls for cls in self._asked if cls in self._places]

    def _resolved(self) -> list[Any]:
        return [*map(type.__getattribute__, self._asked, itertools.cycle(_HOOKED))]


def _places_of_hooks(cls: type) -> list[tuple[type, str]]:
    if issubclass(cls, _LEFT_ALONE) or cls is ModuleType or cls.__module__.startswith("treeplay."):
        return []
    places = [(place, name) for name in _HOOKED if (place := _place_of_hook(cls, name)) is not None]
    return places if len(places) == len(_HOOKED) else []


def _place_of_hook(cls: type, name: str) -> type | None:
    """The class in which `name` can be replaced for the instances of `cls`: where they find it, else the last one before."""
    place = None
    for base in cls.__mro__:
        is_open = bool(base.__flags__ & _HEAP) and not base.__flags__ & _IMMUTABLE
        if name in vars(base):
            return base if is_open else place  # in an extension's class, as `dict`: the mixins after it are not asked
        # A change of `Generic` or `ABC` would be one of hundreds of classes, which takes a millisecond.
        if is_open and (place is None or base.__module__ not in _OF_MIXINS):
            place = base
    return place


def _hook_for(cls: type, name: str, before: Any) -> Any:
    hook = _reader(cls, before) if name == "__getattribute__" else _storer(cls, name, before)
    stand_in(hook, before)
    return hook


def _take_out(cls: type, name: str, before: Any, _: Any) -> None:
    if before is ABSENT:
        type.__delattr__(cls, name)
    else:
        type.__setattr__(cls, name, before)


@lru_cache(maxsize=1)
def _standing(_: int) -> ReadHooks:
    return ReadHooks(_classes_in_modules())


def hooks_of_modules() -> ReadHooks:
    """Hooks for the classes of the objects that loaded modules hold."""
    return _standing(len(sys.modules))


def classes_of(objects: Iterable[Any]) -> list[type]:
    """The classes of these objects and of what their attributes hold."""
    found: dict[type, None] = {}
    for value in objects:
        found[type(value)] = None
        found |= dict.fromkeys(map(type, _attributes(value)))
    return [cls for cls in found if cls.__flags__ & _HEAP]


def _classes_in_modules() -> tuple[type, ...]:
    """Classes whose instances loaded modules hold, or their instances hold, three steps deep."""
    modules = [module for name, module in _loaded().items() if isinstance(module, ModuleType) and not _is_unread(name)]
    layer: list[Any] = [value for module in modules for value in (module, *vars(module).values())]
    found: dict[type, None] = {torch.nn.Module: None, torch.optim.Optimizer: None}
    for _step in range(3):
        fresh: list[Any] = []
        for value in layer:
            cls = type(value)
            if not cls.__flags__ & _HEAP or issubclass(cls, _LEFT_ALONE) or _is_unread(str(cls.__module__)):
                continue
            if cls not in found:
                found[cls] = None
                fresh += [entry for base in cls.__mro__ for entry in list(vars(base).values())]
            fresh += _attributes(value)
        layer = list({id(value): value for value in fresh}.values())
    return tuple(found)


@lru_cache(maxsize=8192)
def _is_unread(module: str) -> bool:
    """Whether programs do not read the objects of a module's classes, of which there are hundreds, or which a trace itself
    reads all the time: to hook these would take half of its time. Of an object that is read all the same, all attributes
    count as read."""
    return module.startswith(_UNREAD)


_UNREAD = (
    *("mpmath", "sympy", "torch._dynamo.variables", "torch._inductor", "torch.utils._sympy"),
    *("_pytest", "execnet", "pluggy"),
    *("_frozen_importlib", "importlib", "torch.utils._pytree", "typing"),
)


def entry_of(value: Any, name: str) -> Any:
    """What an object's own dictionary of attributes holds, without asking its class; `ABSENT` if nothing."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except Exception:  # `__dict__` may be a property of the class's
        return ABSENT
    return table.get(name, ABSENT) if isinstance(table, dict) else ABSENT


def _attributes(value: Any) -> list[Any]:
    try:
        table = object.__getattribute__(value, "__dict__")
    except Exception:  # `__dict__` may be a property of the class's
        return []
    return list(table.values()) if isinstance(table, dict) else []


_watching: list[Reads] = []  # the innermost last; one thread traces at a time
_noting: Reads | None = None  # the innermost, but in a pause: nearly all reads of a trace are made in one


def _innermost_notes() -> None:
    global _noting
    _noting = _watching[-1] if _watching and _watching[-1].is_noting else None


def _reader(cls: Any, before: Any) -> Callable[[Any, str], Any]:
    if before is ABSENT:

        def __getattribute__(self: Any, name: str) -> Any:
            if (reads := _noting) is not None:
                reads._note(self, name)
            return super(cls, self).__getattribute__(name)

    else:

        def __getattribute__(self: Any, name: str) -> Any:
            if (reads := _noting) is not None:
                reads._note(self, name)
            return before(self, name)

    _hide(__getattribute__.__code__)
    return __getattribute__


def _storer(cls: Any, kind: str, before: Any) -> Callable[..., None]:
    def store(self: Any, name: str, *value: Any) -> None:
        if (reads := _noting) is not None:
            reads._note_store(self, name)
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


def _is_ours(code: CodeType) -> bool:
    """Whether code runs because a program is traced: of this package, or of torch's symbolic numbers, modes and graphs."""
    return is_machinery(code.co_filename) or (
        code.co_qualname.startswith(("SymFloat.", "SymBool.", "SymInt.", "sym_")) and code.co_filename == torch.__file__
    )


@lru_cache(maxsize=4096)
def is_machinery(file: str) -> bool:
    """Whether a file is ours, or torch's way to a dispatch mode or a symbolic number: it runs because a program is traced."""
    return file.startswith((_OURS, "<frozen importlib")) or file.endswith(_OF_A_TRACE) or _DYNAMO in file


_OURS = __file__.rpartition("guards")[0]
_OF_A_TRACE = (
    "torch/_library/simple_registry.py",
    "torch/_library/effects.py",
    "torch/_library/fake_impl.py",
    "torch/_library/utils.py",
    "torch/_ops.py",
    "torch/overrides.py",
    "torch/utils/_python_dispatch.py",
    "torch/fx/graph.py",
    "torch/fx/node.py",
    "torch/fx/immutable_collections.py",
    "torch/fx/experimental/sym_node.py",
    "torch/fx/experimental/symbolic_shapes.py",
)
_DYNAMO = "/torch/_dynamo/"  # it looks away while a program is traced
_MODULES_ON_THE_WAY = ("torch._library.simple_registry",)


@lru_cache(maxsize=1024)
def _entry_taken(code: CodeType, at: int) -> str:
    """The one name that the instructions around a load of `__dict__` look up in it; `WHOLE` if they do anything else."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL", "NOP")]
    here = next((index for index, step in enumerate(steps) if step.offset == at), None)
    if here is None or steps[here].argval != WHOLE:
        return WHOLE
    after = [*steps[here + 1 : here + 4], None, None, None]
    one, two, before = after[0], after[1], steps[here - 2] if here >= 2 else None
    if one is None or two is None:
        return WHOLE
    if one.opname == "LOAD_CONST" and isinstance(one.argval, str) and two.opname == "BINARY_SUBSCR":
        return one.argval
    if one.argval == "get" and two.opname == "LOAD_CONST" and isinstance(two.argval, str):
        return two.argval
    if one.opname == "CONTAINS_OP" and before is not None and isinstance(before.argval, str):
        is_constant = before.opname == "LOAD_CONST" and steps[here - 1].opname.startswith("LOAD_FAST")
        return before.argval if is_constant else WHOLE
    return WHOLE

"""Reach: from what a traced run read to the guards over it.

A run does what its code and what it read make it do. So the walk starts where the run started (the program, its arguments'
objects, the code that ran) and goes on through what was read, and through nothing else:

    function that ran     its code, defaults, closure, and the globals that its code names
    watched object        the attributes that were read, present or absent; its class
    other object          all attributes, since nobody saw which were read
    container             all of it, since Python does not tell which items were read
    class                 its functions and special methods, and data of names that were read anywhere

An attribute that nobody read cannot change what the run does, and is not entered. Objects that were read but are found by no
path are guarded all the same. The walk runs after the trace, when everything is as the run found it.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import gc
import inspect
import io
import linecache
import logging
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from treeplay.guards.conditions import Asked, Code, Data
from treeplay.guards.containers import Items, Members, Table
from treeplay.guards.dependencies import Dependencies
from treeplay.guards.entries import (
    content_of,
    entry_in_thread,
    is_found_on,
    is_of_the_program,
    matters,
    names_in_thread,
    real_table,
)
from treeplay.guards.kinds import CONTAINERS, HARMLESS, VALUES, VIEWS, WRAPPERS, Memory, NumpyScalar
from treeplay.guards.names import (
    NAMESPACES,
    computes_names,
    globals_in,
    goes_behind,
    imports_in,
    inner_code,
    names_in,
    passes_to_super,
)
from treeplay.guards.ran import function_of, functions_with
from treeplay.guards.reads import WHOLE, ObjectReads, Reads, entry_of
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import is_a, is_iterator, table_of
from treeplay.values.same import is_same

_MOST_OBJECTS = 200_000
_MOST_BYTES = 1 << 20
# What the import system keeps in a module, and asks for at every import.
_OF_THE_LOADER = frozenset({"__spec__", "__loader__", "__path__", "__file__", "__package__", "__cached__"})
_TABLES_OF_MODULES = frozenset({"_parameters", "_buffers", "_modules"})  # whose entries a user writes as attributes


class TooMuch(Exception):
    """The program reaches more objects than can be guarded."""


class Reach(Dependencies):
    """The walk, and what it found."""

    def __init__(self, reads: Reads, *, also_assigned: bool = False) -> None:
        super().__init__()
        self.reads = reads
        self.also_assigned = also_assigned  # no replay assigns what was assigned: it has to be there already
        self.changed: list[tuple[Any, str, Any]] = []  # attributes that still are other than before the run
        self.opaque: list[tuple[Any, str]] = []
        self.large: list[tuple[Any, str]] = []  # memory that takes too long to compare on each call
        self.iterators: list[tuple[Any, str]] = []
        self._seen: dict[int, Any] = {}
        self.seen: frozenset[int] = frozenset()  # what was met, by `id`, once the walk is over
        self._waiting: collections.deque[tuple[Any, str]] = collections.deque()
        self._globals: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}
        self._entered: set[tuple[int, str]] = set()
        self._twice: set[int] = set()  # what was met in more than one place
        self._unordered: set[int] = set()  # parameter groups, which torch asks by name
        self._weak: set[int] = set()  # what only a weak reference leads to
        self._functions_seen: set[int] = set()
        self._classes: dict[type, None] = {}
        noted = {name for entry in reads.objects.values() for name in entry.read}
        named = [names_in(code) for code in (reads.code or {}).values()]
        self._names = noted.union(*named)
        self.leave_out(linecache.cache)  # lines of files, generated ones too, which a warning shows
        asked = (reads.builtins.get(f"builtins.{name}", ()) for name in ("getattr", "hasattr", "vars", "dir"))
        callers = {code for found in asked for code in found if not code.co_filename.startswith(_TORCH)}
        self._asks_classes = any(map(computes_names, callers))
        behind = [code for code in (reads.code or {}).values() if goes_behind(code)]
        self._is_blind = not all(map(passes_to_super, behind))
        self._behind_own = behind  # methods that go behind the back of their own object's class only
        self._of_instances: set[type] = set()
        self._named: dict[type, None] = {}  # torch's classes of which no object was met

    def leave_out(self, value: Any) -> None:
        """Guard nothing of `value` itself: a container of the arguments, which the call takes apart each time."""
        self._seen[id(value)] = value

    def may_have_read(self, value: Any, name: str) -> bool:
        """Whether the run may have read this attribute of an object; to be asked before the walk."""
        if not self.reads.is_watched(value) or self._is_blind or self._goes_behind_itself(type(value)):
            return True
        names = self.reads.names(value, also_assigned=self.also_assigned)
        return name in names or WHOLE in names

    def walk(self, roots: Iterable[tuple[Any, str]]) -> Reach:
        """Enter `roots`, each with its label, and all that follows; raises `TooMuch`."""
        for value, label in (*roots, (torch.Tensor, "Tensor")):
            self.enter(value, label)
        self._run()
        self._enter_unfound_code()
        self._enter_unfound_objects()
        self._enter_imports()
        self._run()
        for table, names in self._globals.values():
            if names:
                self.add_table(Table(table, f"{table.get('__name__', 'globals')}.", tuple(names)))
        for key in self._seen.keys() & self.reads.objects.keys():
            noted = self.reads.objects[key]
            for name, before in noted.assigned.items():
                now = entry_of(noted.object, name)
                if now is not before and not is_same(now, before):
                    self.changed.append((noted.object, name, before))
        for key in self._twice & self.containers.keys():
            self.containers[key].may_be_replaced = False  # a program may see that two places hold one object
        self.seen = frozenset(self._seen)
        self._seen.clear()  # what is guarded is kept by its guard
        self.reads = Reads(())
        return self

    def _run(self) -> None:
        while self._waiting or self._has_more_globals():
            while self._waiting:
                if len(self._seen) > _MOST_OBJECTS:
                    raise TooMuch
                self._visit(*self._waiting.popleft())

    def enter(self, value: Any, label: str) -> None:
        """Follow `value`, which the run read at `label`."""
        if type(value) in VALUES or is_a(value, HARMLESS):
            return
        key = id(value)
        if key in self._seen:
            self._twice.add(key)
            return
        self._seen[key] = value
        self._waiting.append((value, label))

    def _visit(self, value: Any, label: str) -> None:
        for kind, visit in _KINDS:
            if is_a(value, kind):
                visit(self, value, label)
                return
        self._instance(value, label)

    # --- functions --------------------------------------------------------------------------------------------

    def _ran(self, code: types.CodeType) -> bool:
        return self.reads.code is None or id(code) in self.reads.code

    def _function(self, function: types.FunctionType, label: str) -> None:
        if function.__module__ and function.__module__.startswith("treeplay.") and not hasattr(function, "__wrapped__"):
            return
        if not self._ran(function.__code__) and not any(self._ran(inner) for inner in inner_code(function.__code__)):
            return
        self._functions_seen.add(id(function.__code__))
        self.functions.append(Code(function, function.__qualname__))
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "__class__":  # which Python fills once, for `super()`
                self.enter(content_of(cell), name)
            else:
                self._cell(cell, name)
        for index, value in enumerate(function.__defaults__ or ()):
            self.enter(value, f"{label}.__defaults__[{index}]")
        if function.__kwdefaults__:
            self.enter(function.__kwdefaults__, f"{label}.__kwdefaults__")
        self._table(vars(function), f"{label}.")
        self._globals_of(function.__code__, function.__globals__)

    def _globals_of(self, code: types.CodeType, table: dict[str, Any]) -> None:
        names = self._globals.setdefault(id(table), (table, {}))[1]
        names |= dict.fromkeys(globals_in(code))
        if not NAMESPACES.isdisjoint(code.co_names) and not self._leaves_its_namespace(code):
            self._add_namespace(table, names)
        for inner in inner_code(code):
            if self._ran(inner):
                self._functions_seen.add(id(inner))
                self._globals_of(inner, table)

    def _leaves_its_namespace(self, code: types.CodeType) -> bool:
        """Whether `code` only names what would lead to its globals: it gives its caller's frame, or had no text to evaluate."""
        if code is inspect.get_annotations.__code__:  # which every `inspect.signature` runs
            return code not in self.reads.builtins.get("builtins.eval", ())
        return code is inspect.currentframe.__code__

    def _add_namespace(self, table: dict[str, Any], names: dict[str, None]) -> None:
        """All of a module's entries, but what the import system keeps there."""
        if id(table) not in self._seen:
            self._seen[id(table)] = table
            self.add_table(Table(table, f"{table.get('__name__', 'globals')}.", matters=is_of_the_program))
            names |= {name: None for name in table if is_of_the_program(name)}

    def _has_more_globals(self) -> bool:
        """Enter what is found under the names that functions met since the last time use; tells whether there was any."""
        has_more = False
        for table, names in list(self._globals.values()):
            builtins = table.get("__builtins__", {})
            outer = vars(builtins) if is_a(builtins, types.ModuleType) else builtins
            for name in names:
                if (id(table), name) in self._entered:
                    continue
                self._entered.add((id(table), name))
                has_more = True
                if name in table:
                    self.enter(table[name], name)
                elif name in outer:
                    self._globals.setdefault(id(outer), (outer, {}))[1].setdefault(name)
        return has_more

    def _cell(self, cell: types.CellType, label: str) -> None:
        if id(cell) in self._seen:
            return
        self._seen[id(cell)] = cell
        self.asked.append(
            Asked(functools.partial(content_of, cell), label, (id(cell), None), attribute=(cell, "cell_contents"))
        )
        self.enter(content_of(cell), label)

    def _method(self, method: types.MethodType, label: str) -> None:
        self.enter(method.__self__, "self" if label == "program" else f"{label}.__self__")
        self.enter(method.__func__, method.__func__.__qualname__)

    def _builtin(self, function: types.BuiltinFunctionType, label: str) -> None:
        owner = function.__self__
        if owner is not None and not is_a(owner, types.ModuleType):
            self.enter(owner, f"{label}.__self__")

    def _partial(self, partial: functools.partial[Any], label: str) -> None:
        self.enter(partial.func, f"{label}.func")
        for index, value in enumerate(partial.args):
            self.enter(value, f"{label}.args[{index}]")
        self.enter(partial.keywords, f"{label}.keywords")
        self._instance(partial, label)

    def _wrapper(self, wrapper: Any, label: str) -> None:
        self.enter(wrapper.__func__, label)

    def _property(self, found: property, label: str) -> None:
        for name in ("fget", "fset", "fdel"):
            self.enter(getattr(found, name), label)

    def _enter_unfound_code(self) -> None:
        """Functions that ran though no path led to them: they are looked for among all functions there are."""
        wanted = [code for key, code in (self.reads.code or {}).items() if key not in self._functions_seen]
        wanted = [code for code in wanted if not code.co_filename.startswith(("<treeplay", "<frozen"))]
        wanted = [code for code in wanted if code.co_name not in _TRANSIENT and code.co_filename != typing.__file__]
        wanted = [code for code in wanted if code.co_qualname not in _CALLBACKS]
        functions = [(code, function_of(code)) for code in wanted]
        for _, function in functions:
            if function is not None:
                self.enter(function, function.__qualname__)
        wanted = [code for code, function in functions if function is None]
        if wanted:  # nested in others, or made of text: all functions there are have to be looked at
            for found in functions_with(wanted):
                if id(found.__code__) not in self._functions_seen:
                    self.enter(found, found.__qualname__)
        self._run()

    # --- objects ----------------------------------------------------------------------------------------------

    def _instance(self, value: Any, label: str) -> None:
        cls = type(value)
        if is_a(value, CONTAINERS):
            self._contents(value, label)
        if cls.__module__ == "typing":
            return
        if str(cls.__module__).startswith("treeplay."):
            self.enter(getattr(value, "__wrapped__", None), label)  # a jitted program inside of this one runs as it is
            return
        table = table_of(value)
        is_watched = self.reads.is_watched(value) and not self._is_blind and not self._goes_behind_itself(cls)
        if not cls.__flags__ & _HEAP and not is_a(value, CONTAINERS):
            self._foreign(value, label)
            if table is None:
                return
        if id(value) not in self._weak:
            self.kinds.append((value, cls, label))
        self._of_instances.update(cls.__mro__)
        for base in self._named.keys() & self._of_instances:
            del self._named[base]
            self._data_of_class(base)
        self.enter(cls, cls.__qualname__)
        if is_a(value, torch.optim.Optimizer):
            self._unordered |= {id(group) for group in vars(value).get("param_groups", ())}
        names = self.reads.names(value, also_assigned=self.also_assigned) if is_watched else {WHOLE: None}
        self._slots(value, label, None if WHOLE in names else names)
        if table is None:
            return
        if WHOLE in names:
            self._table(table, f"{label}.")
            return
        kept = tuple(name for name in names if name in table or not is_found_on(cls, name))
        if kept:
            self.add_table(Table(table, f"{label}.", kept))
            for name in kept:
                if name in table:
                    is_part = is_a(value, torch.nn.Module) and name in _TABLES_OF_MODULES
                    self.enter(table[name], f"{label}." if is_part else f"{label}.{name}")

    def _slots(self, value: Any, label: str, names: dict[str, None] | None) -> None:
        for cls in type(value).__mro__:
            for name, entry in vars(cls).items() if cls.__flags__ & _HEAP else ():
                if is_a(entry, types.MemberDescriptorType) and (names is None or name in names):
                    ask = functools.partial(getattr, value, name, ABSENT)
                    asked = Asked(ask, f"{label}.{name}", (id(value), name), attribute=(value, name))
                    self.asked.append(asked)
                    self.enter(asked.recorded, asked.label)

    def _foreign(self, value: Any, label: str) -> None:
        """An object of an extension's: what it is made of is entered, as far as it tells the garbage collector."""
        if is_a(value, weakref.ProxyTypes):
            return
        if is_iterator(value) and not is_a(value, io.IOBase):
            self.iterators.append((value, label))
            return
        self.opaque.append((value, label))
        for found in gc.get_referents(value):
            if not is_a(found, type):
                self.enter(found, label)

    def _module(self, module: types.ModuleType, label: str) -> None:
        names = dict(self.reads.names(module))
        table = vars(module)
        if type(module) is not types.ModuleType:  # of a class of its own, as torch's lazy ones are
            self.enter(type(module), type(module).__qualname__)
        if not self.reads.is_watched(module):
            names |= {name: None for name in self._names if name in table}
            names[WHOLE] = None
        entered = self._globals.setdefault(id(table), (table, {}))[1]
        if WHOLE in names:
            self._add_namespace(table, self._globals.setdefault(id(table), (table, {}))[1])
        entered |= {name: None for name in names if name != WHOLE and name not in _OF_THE_LOADER}

    def _class(self, cls: type, label: str) -> None:
        if cls.__flags__ & _HEAP and cls.__bases__ != (object,):  # nobody can give such a class other bases
            self.orders[cls] = cls.__mro__
        for base in cls.__mro__:
            if base in self._classes or not base.__flags__ & _HEAP or str(base.__module__).startswith("treeplay."):
                continue
            self._classes[base] = None
            self._seen.setdefault(id(base), base)
            self._data_of_class(base)
        metaclass: type = type(cls)
        if metaclass is not type and metaclass.__flags__ & _HEAP:
            self.enter(metaclass, metaclass.__qualname__)

    def _data_of_class(self, cls: type) -> None:
        asks = self._asks_classes
        if asks and cls not in self._of_instances and str(cls.__module__).partition(".")[0] == "torch":
            self._named[cls] = None
            asks = False
        counts = functools.partial(matters, self._names, asks)
        table = real_table(cls)
        self.add_table(Table(table, f"{cls.__qualname__}.", matters=counts))
        for name, entry in list(table.items()):
            is_data = not is_a(entry, (*WRAPPERS, property, types.FunctionType))
            if counts(name) and (not is_data or asks or name in self._names):
                self.enter(entry, f"{cls.__qualname__}.{name}")

    def _goes_behind_itself(self, cls: type) -> bool:
        """Whether a method of `cls` that ran asks for attributes of its object in a way that the class is not told of."""
        return any(
            getattr(vars(base).get(code.co_name), "__code__", None) is code
            for code in self._behind_own
            for base in cls.__mro__
        )

    def _enter_unfound_objects(self) -> None:
        """Objects whose attributes were read though no path led to them, unless they were made by the run and are gone."""
        for key, noted in list(self.reads.objects.items()):
            if key in self._seen or is_a(noted.object, type) or not noted.read:
                continue
            if is_a(noted.object, types.ModuleType):
                self.enter(noted.object, noted.object.__name__)
            elif sys.getrefcount(noted.object) > _OURS and not _is_of_the_run(noted):
                self.enter(noted.object, f"a {type(noted.object).__name__}")
        self._run()

    def _enter_imports(self) -> None:
        """Modules that code of the run imports: they are looked up among those that are loaded."""
        names: dict[str, None] = {}
        for code in (self.reads.code or {}).values():
            names |= dict.fromkeys(name for name in imports_in(code) if name in sys.modules)
        if names:
            self.add_table(Table(sys.modules, "sys.modules.", tuple(names)))
            for name in names:
                self.enter(sys.modules[name], name)

    # --- containers -------------------------------------------------------------------------------------------

    def _table(self, table: dict[Any, Any], label: str) -> None:
        """All of a dictionary of attributes."""
        if id(table) not in self._seen:
            self._seen[id(table)] = table
            self.add_table(Table(table, label))
            for name, value in list(table.items()):
                self.enter(value, f"{label}{name}")

    def _contents(self, value: Any, label: str) -> None:
        if is_a(value, dict):
            if value is sys.modules or dict.keys(value) >= {"__builtins__", "__name__"}:
                return  # namespaces, which are entered by name
            table = Table(value, label)
            table.may_be_replaced = type(value) in (dict, collections.defaultdict, collections.OrderedDict)
            self.add_table(table)
            for key, item in list(dict.items(value)):
                self.enter(key, f"a key of {label}")
                self.enter(item, table.label_of(key))
            table.is_unordered = id(value) in self._unordered
            if is_a(value, collections.defaultdict):
                self.enter(value.default_factory, f"{label}.default_factory")
        elif is_a(value, (list, collections.deque)):
            items = Items(value, label)
            items.may_be_replaced = type(value) in (list, collections.deque)
            self.items.append(items)
            self.containers[id(value)] = items
            self._each(items.recorded, label)
        elif is_a(value, set):
            members = Members(value, label)
            members.may_be_replaced = type(value) is set
            self.members.append(members)
            self.containers[id(value)] = members
            self._each(members.recorded, label)
        else:
            self._each(tuple.__iter__(value) if is_a(value, tuple) else frozenset.__iter__(value), label)

    def _each(self, values: Iterable[Any], label: str) -> None:
        for index, value in enumerate(values):
            self.enter(value, f"{label}[{index}]")

    def _plain_container(self, value: Any, label: str) -> None:
        if type(value) in (*CONTAINERS, collections.OrderedDict, collections.defaultdict, torch.Size):
            self._contents(value, label)
        else:
            self._instance(value, label)

    def _cached(self, function: Any, label: str) -> None:
        """A function with a cache: what the cache gave must be in it still; what others add to it does not matter."""
        self.enter(function.__wrapped__, label)
        if function.__module__ == "typing":  # whose caches forget, and whose answers are the same whenever asked
            return
        for found in gc.get_referents(function):
            if type(found) is dict and found is not table_of(function) and id(found) not in self._seen:
                self._seen[id(found)] = found
                cache = Table(found, f"cache of {label}")
                cache.may_grow = True
                self.add_table(cache)

    def _proxy(self, value: types.MappingProxyType[Any, Any], label: str) -> None:
        for found in gc.get_referents(value):
            self.enter(found, label)

    # --- the rest ---------------------------------------------------------------------------------------------

    def _tensor(self, tensor: torch.Tensor, label: str) -> None:
        if is_a(tensor, FakeTensor):
            return
        if id(tensor) not in self._weak:
            self.tensors[id(tensor)] = tensor, label
        self.enter(type(tensor), type(tensor).__qualname__)
        self._table(vars(tensor), f"{label}.")
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            self.enter(getattr(tensor, name, None), f"{label}.{name}")

    def _reference(self, reference: weakref.ref[Any], label: str) -> None:
        """What it refers to is guarded without being kept alive."""
        if type(reference) is not weakref.ref:  # of a class of its own, which may do more when it is called
            self._instance(reference, label)
        self.asked.append(Asked(functools.partial(_is_alive, reference), f"{label}() is alive"))
        self.references.append(reference)
        found = weakref.ref.__call__(reference)
        if found is not None and id(found) not in self._seen:
            self._weak.add(id(found))
            self.enter(found, f"{label}()")

    def _variable(self, variable: contextvars.ContextVar[Any], label: str) -> None:
        asked = Asked(functools.partial(variable.get, ABSENT), f"{label}.get()")
        self.asked.append(asked)
        self.enter(asked.recorded, asked.label)

    def _of_thread(self, local: Any, label: str) -> None:
        """What a thread has put into a `threading.local`: another thread has other values there."""
        for name in {**vars(local), **dict.fromkeys(self._names)}:
            if name in vars(local) or (not hasattr(type(local), name) and name in self.reads.names(local)):
                asked = Asked(functools.partial(entry_in_thread, local, name), f"{label}.{name}")
                self.asked.append(asked)
                self.enter(asked.recorded, asked.label)
        self.asked.append(Asked(functools.partial(names_in_thread, local), f"names in {label}"))

    def _logger(self, logger: logging.Logger, label: str) -> None:
        """Of a logger only which messages it takes: what it keeps besides grows and is cached as others use it."""
        above: logging.Logger | None = logger
        tables: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [(vars(logger.manager), "logging.", ("_disable",))]
        while above is not None:
            tables.append((vars(above), f"logger {above.name}.", ("level", "disabled", "parent", "manager")))
            above = above.parent
        for table, name, entries in tables:
            if id(table) not in self._seen:
                self._seen[id(table)] = table
                self.add_table(Table(table, name, entries))

    def _memory(self, value: Any, label: str) -> None:
        size = getattr(value, "nbytes", None)
        if getattr(getattr(value, "dtype", None), "hasobject", False):
            self._each(value.ravel().tolist(), label)
        if (len(bytes(value)) if size is None else size) > _MOST_BYTES:
            self.large.append((value, label))
        else:
            self.data.append(Data(value, label))

    def _nothing(self, value: Any, label: str) -> None:
        """Nothing to see."""


_TORCH = torch.__file__.rpartition("__init__")[0]  # whose code asks a class for names that it spells out
_HEAP = 1 << 9
_OURS = 2  # references to an object that nobody else refers to: that of `ObjectReads`, and the argument of the question
# Weak containers' own callbacks run whenever something dies, be it of the program's or not.
_CALLBACKS = frozenset(
    {
        "WeakKeyDictionary.__init__.<locals>.remove",
        "WeakValueDictionary.__init__.<locals>.remove",
        "WeakSet.__init__.<locals>._remove",
    }
)
_TRANSIENT = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})


def _is_alive(reference: weakref.ref[Any]) -> bool:
    return weakref.ref.__call__(reference) is not None


def _is_of_the_run(noted: ObjectReads) -> bool:
    """Whether an object holds nothing but what the run put into it, or something that only the run can have made."""
    table = table_of(noted.object) or {}
    if table and all(noted.assigned.get(name) is ABSENT for name in table):
        return True
    values = list(table.values())
    values += [item for value in values if is_a(value, dict) for item in value.values()]
    values += [item for value in values if is_a(value, (list, tuple)) for item in value]
    return any(is_a(value, (FakeTensor, torch.SymFloat, torch.SymInt)) for value in values)


_KINDS: tuple[tuple[Any, Callable[..., None]], ...] = (
    (torch.Tensor, Reach._tensor),
    (logging.Logger, Reach._logger),
    (types.ModuleType, Reach._module),
    (type, Reach._class),
    (CONTAINERS, Reach._plain_container),
    (VIEWS, Reach._proxy),
    (functools._lru_cache_wrapper, Reach._cached),
    (types.FunctionType, Reach._function),
    (types.MethodType, Reach._method),
    ((types.BuiltinFunctionType, types.MethodWrapperType), Reach._builtin),
    (functools.partial, Reach._partial),
    (WRAPPERS, Reach._wrapper),
    (property, Reach._property),
    (types.CellType, Reach._cell),
    (weakref.ref, Reach._reference),
    (contextvars.ContextVar, Reach._variable),
    (threading.local, Reach._of_thread),
    (NumpyScalar, Reach._nothing),
    (Memory, Reach._memory),
)

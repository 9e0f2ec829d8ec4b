"""Survey: what a program can reach without being given it.

In: the program. Out: a `Survey`, the places of tensors, modules, optimizers and plain values that can be reached from its
closure, its globals, its `self` and its defaults, and the containers on the way (they are put back after a trace).

Functions of the user are followed through the names in their code; the standard library's and classes without attributes
are not entered. What a survey does not find, a trace refuses to use as state.
"""

from __future__ import annotations

import collections
import enum
import functools
import io
import sys
import weakref
from collections.abc import Callable, Iterable
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch

from treeplay.observe import lines
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.torch_seam.tensors import is_initialised
from treeplay.trace.bare import entries
from treeplay.trace.found import GONE, PLAIN, Container, Survey
from treeplay.trace.names import methods_used, names_in, stores_in, strings_in, values_in
from treeplay.trace.random_sources import is_source
from treeplay.trace.scaling import find_scaler, settings_of
from treeplay.values.kinds import is_a, is_iterator, is_leaf, items, table_of
from treeplay.values.place import Binding, How, root

_NUMBERS = (bool, int, float, complex)
_FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
_CONSTANTS = (enum.Enum, torch.dtype, torch.device, torch.Size)
_MOST_OBJECTS = 200_000
_MOST_WATCHED = 16  # a longer list of numbers is data, not a setting
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")
_MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MODULE_OWN = frozenset(vars(torch.nn.Module())) - set(_MODULE_HOOKS)
# Objects of these have nothing of the program's; but namespaces of the standard library hold settings.
_LIBRARIES = (sys.stdlib_module_names - {"types", "argparse"}) | {"torch", "treeplay", "numpy", "triton"}
# Methods that code calls without naming them.
_OPERATORS = "neg abs add radd iadd sub rsub isub mul rmul imul truediv rtruediv pow rpow matmul rmatmul"
_PROTOCOLS = "call enter exit iter next getitem setitem getattr getattribute get set torch_function"
_IMPLICIT = frozenset(f"__{name}__" for names in (_OPERATORS, _PROTOCOLS) for name in names.split())
_TEXT = "<string>"
_ENTERED = ("torch.optim", "torch.amp", "torch.distributions", "torch.nn")


def is_users(file: str) -> bool:
    """Whether code of this file is followed: the user's or a third party's, and text that was run, as by `python -c`."""
    return file == _TEXT or lines.is_users(file)


def is_own(file: str) -> bool:
    """Whether code of this file is the user's own, not that of an installed package."""
    return file == _TEXT or lines.is_own(file)


class _Mark(enum.Enum):
    """Stands among the names on the way to a value."""

    FOREIGN = "in the code of an installed package: only numbers are watched, the rest seldom changes"
    NEVER = "in an optimizer: its numbers are inputs, or watched when it steps"


Names = frozenset[str | _Mark]
_ALWAYS: Names = frozenset()
_FOREIGN: Names = frozenset({_Mark.FOREIGN})
_NEVER: Names = frozenset({_Mark.NEVER})


def survey(program: Any, extra: Iterable[Any] = ()) -> Survey:
    """Find all that `program` reaches; `extra` are further objects to start from (arguments that are no tensors)."""
    walk = _SurveyWalk()
    with DisableTorchFunctionSubclass():  # a tensor's class is not asked either
        walk.enter(program, root(program, "program"), _ALWAYS)
        for index, value in enumerate(extra):
            if id(value) not in walk.seen:
                walk.enter(value, root(value, f"{type(value).__name__}#{index}"), _ALWAYS)
        walk.run()
    return walk.found


class _SurveyWalk:
    """Breadth first, each object once; what a place leads to is told apart by type.

    `needs` are the names on the way to a value: it counts as read only if code that the program can run has them all.
    """

    def __init__(self) -> None:
        self.found = Survey()
        self.seen: set[int] = set()
        self.waiting: collections.deque[tuple[Any, Binding, Names]] = collections.deque()
        self.names: set[str | _Mark] = set()  # read as values, or strings
        self.called: set[str | _Mark] = set()  # all names, those of methods included
        self.own: set[str | _Mark] = set()  # those in code that is not of an installed package
        self.candidates: list[tuple[Names, Binding, Any]] = []
        self.iterators: list[tuple[Names, Binding]] = []
        self.entered: set[tuple[ModuleType, CodeType]] = set()
        self.classes: list[type] = []  # the user's own
        self.methods: set[tuple[type, str]] = set()  # of these classes that are watched
        self.named: set[type] = set()  # classes that code names, and so may make instances of

    def enter(self, value: Any, place: Binding, needs: Names) -> None:
        if is_a(value, torch.Tensor):
            self._tensor(value, place)
            return
        if _is_watchable(value) and place.how is not How.ROOT:
            self.candidates.append((needs, place, value))
        if is_a(value, torch.Generator) and place.how is not How.ROOT:
            self.found.generator_places.append((place, value))
        elif is_a(value, BuiltinFunctionType) and is_source(value.__self__):  # `draw = rng.random`
            self.enter(value.__self__, root(value.__self__, str(place)), needs)
        if is_a(value, type):
            if not _is_users_class(value):
                return
            if place.how is not How.ROOT:
                self.named.add(value)
        if not is_a(value, (*PLAIN, BuiltinFunctionType)) and id(value) not in self.seen:
            self.seen.add(id(value))
            self.found.kept.append(value)
            self.waiting.append((value, place, needs))

    def run(self) -> None:
        while self.waiting:
            if len(self.seen) > _MOST_OBJECTS:
                self.found.is_complete = False
                break
            self._visit(*self.waiting.popleft())
            if not self.waiting:
                self._enter_methods()
        any_names = self.names | self.called
        self.found.watched = [
            (place, value)
            for needs, place, value in self.candidates
            # `opt.step()` reads no number of that name, but `self.act(x)` does read the function.
            if needs - _FOREIGN <= (any_names if is_a(value, _FUNCTIONS) else self.names)
            and (is_a(value, _NUMBERS) or not needs >= _FOREIGN)
        ]
        self.found.iterators = [
            place for needs, place in self.iterators if needs <= any_names or needs - _FOREIGN <= self.own
        ]

    def _visit(self, value: Any, place: Binding, needs: Names) -> None:
        wrapped = _wrapped_by(value)
        if wrapped is not None:
            self.enter(wrapped, place.child(How.ATTRIBUTE, value, "__wrapped__", str(place)), needs)
            if is_a(value, torch.nn.Module):  # a jitted module: its tables are those of the module
                return
        for kind, visit in self._kinds:
            if is_a(value, kind):
                visit(self, value, place, needs)
                return
        self._instance(value, place, needs)

    def _tensor(self, tensor: torch.Tensor, place: Binding) -> None:
        if not is_initialised(tensor):
            return  # it has no memory yet, and becomes another tensor when it gets some
        places = self.found.tensors.setdefault(id(tensor), [])
        places.append(place)
        if len(places) == 1:
            self.found.kept.append(tensor)
            for name, value in vars(tensor).items():
                if is_a(value, PLAIN):
                    self.enter(value, place.child(How.ATTRIBUTE, tensor, name, f"{place}.{name}"), frozenset({name}))
            if is_leaf(tensor) and tensor.grad is not None:
                self._tensor(tensor.grad, place.child(How.GRAD, tensor, None, f"{place}.grad"))

    def _keep(self, container: Container, place: Binding) -> None:
        self.found.containers[id(container)] = container
        self.found.container_places[id(container)] = place

    # --- modules, optimizers and other objects --------------------------------------------------------------

    def _module(self, module: torch.nn.Module, place: Binding, needs: Names) -> None:
        if is_a(module, torch.jit.ScriptModule):
            return  # its parameters are in no dictionary of Python's: a trace refuses to use them
        if not all(is_a(vars(module).get(table), dict) for table in (*_MODULE_TABLES, *_MODULE_HOOKS)):
            self._instance(module, place, needs)  # made without its constructor
            return
        needs = _origin(type(module))  # whether its values count depends on whether it is called
        self.found.modules[id(module)] = module
        self.found.objects[id(module)] = place
        for table in _MODULE_TABLES:
            values = module.__dict__[table]
            self._keep(values, place)
            for name, value in values.items():
                needed = frozenset({name}) if value is None else _ALWAYS
                self.enter(value, place.child(How.ITEM, values, name, f"{place}.{name}"), needed)
        for table in _MODULE_HOOKS:
            for hook in module.__dict__[table].values():
                self.enter(hook, root(hook, f"a hook of {place}"), needs)
        self._methods(type(module), "forward")
        if _origin(type(module)) is _ALWAYS:  # it may be given another one, as may its class
            forward = place.child(How.ATTRIBUTE, module, "forward", f"{place}.forward")
            self.candidates.append((_ALWAYS, forward, module.forward))
        self._attributes(module, place, needs, skip=_MODULE_OWN - {"training"})

    def _methods(self, cls: type, entry: str) -> None:
        """Note the names that a class's entry method, and what it calls on itself, read; enter the user's functions."""
        for method in methods_used(cls, entry):
            self._read_names(method)
            if is_users(method.__code__.co_filename):
                self.enter(method, root(method, method.__qualname__), _ALWAYS)

    def _enter_methods(self) -> None:
        """Enter the methods of the user's own classes that code met so far names, or that Python calls by itself."""
        names = self.names | self.called
        for cls in self.classes:
            for name, entry in vars(cls).items():
                is_called = name in _IMPLICIT or (name == "__init__" and cls in self.named)
                is_called = is_called or (name == "__len__" and "len" in names)
                method = _function_of(entry)
                if method is not None and (name in names or is_called):
                    self.enter(method, root(method, method.__qualname__), _ALWAYS)
                    if method is entry and (cls, name) not in self.methods:
                        self.methods.add((cls, name))
                        place = root(cls, cls.__qualname__).child(How.ATTRIBUTE, cls, name, method.__qualname__)
                        self.candidates.append((_ALWAYS, place, entry))

    def _read_names(self, function: FunctionType) -> None:
        self.names |= values_in(function.__code__) | strings_in(function.__code__)
        self.called |= names_in(function.__code__)
        if is_own(function.__code__.co_filename):
            self.own |= names_in(function.__code__) | strings_in(function.__code__)

    def _attributes(self, value: Any, place: Binding, needs: Names, skip: Iterable[str] = ()) -> None:
        table = table_of(value)
        if table is None:
            return
        self._keep(table, place)
        # A copy: a list of the items makes objects, by which a collection may begin and write.
        for name, entry in dict.copy(table).items():
            if name not in skip:
                self.enter(entry, place.child(How.ITEM, table, name, f"{place}.{name}"), needs | {name})
        self._of_class(value, place)

    def _slots(self, value: Any, place: Binding, needs: Names) -> None:
        for cls in type(value).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if is_a(slots, str) else slots:
                if name not in ("__dict__", "__weakref__"):
                    here = place.child(How.ATTRIBUTE, value, name, f"{place}.{name}")
                    self._single(here, needs | {name})

    def _of_class(self, value: Any, place: Binding) -> None:
        """Plain values that the user's classes give to their instances."""
        hidden = set(table_of(value) or ())  # by what is nearer
        for cls in type(value).__mro__:
            if _is_users_class(cls):
                self.enter(cls, root(cls, cls.__qualname__), _ALWAYS)
                for name, entry in _data_of(cls):
                    if is_a(entry, PLAIN) and name not in hidden:
                        here = place.child(How.ATTRIBUTE, value, name, f"{place}.{name}")
                        self.enter(entry, here, _origin(cls) | {name})
            hidden |= vars(cls).keys()

    def _class(self, cls: type, place: Binding, needs: Names) -> None:
        self.found.objects[id(cls)] = place
        if _origin(cls) is _ALWAYS:
            self.classes.append(cls)
        for name, _ in _data_of(cls):
            self._single(place.child(How.ATTRIBUTE, cls, name, f"{place}.{name}"), _origin(cls) | {name})

    def _single(self, place: Binding, needs: Names) -> None:
        """A place of its own, which is in no container that is put back as a whole."""
        value = place.read_or(GONE)
        self.found.cells.append((place, value))
        if value is not GONE:
            self.enter(value, place, needs)

    def _optimizer(self, optimizer: torch.optim.Optimizer, place: Binding, needs: Names) -> None:
        if not {"state", "param_groups"} <= vars(optimizer).keys():  # made without its constructor
            self._instance(optimizer, place, needs)
            return
        self.found.optimizers.append(optimizer)
        self.found.objects[id(optimizer)] = place
        table = vars(optimizer)
        self._keep(table, place)
        for name in ("state", "param_groups"):
            self.enter(table[name], place.child(How.ITEM, table, name, f"{place}.{name}"), _NEVER)
        if _is_users_class(type(optimizer)):
            own = [name for name in table if name[:1] != "_" and name not in ("defaults", "state", "param_groups")]
            for name in own:
                self.enter(table[name], place.child(How.ITEM, table, name, f"{place}.{name}"), frozenset({name}))
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            for hook in table.get(name, {}).values():
                self.enter(hook, root(hook, f"a hook of {place}"), needs)

    def _instance(self, value: Any, place: Binding, needs: Names) -> None:
        cls = type(value)
        if is_iterator(value) and not is_a(value, io.IOBase):
            self.iterators.append((needs, place))
        module = str(cls.__module__)
        if module.partition(".")[0] in _LIBRARIES and not module.startswith(_ENTERED):
            return
        self.found.objects[id(value)] = place
        origin = _origin(cls) | (needs & _FOREIGN)
        if callable(value):
            self._methods(cls, "__call__")
        if table_of(value) is not None:
            self._attributes(value, place, origin)
        else:
            self._of_class(value, place)
        self._slots(value, place, origin)

    def _scaler(self, scaler: Any, place: Binding, needs: Names) -> None:
        self.found.scalers.append(find_scaler(scaler, place))
        self.candidates += [(_ALWAYS, *setting) for setting in settings_of(scaler, place)]
        self._instance(scaler, place, needs)

    def _generator(self, generator: torch.Generator, place: Binding, needs: Names) -> None:
        self.found.generators[id(generator)] = generator
        self.found.objects[id(generator)] = place

    # --- containers -----------------------------------------------------------------------------------------

    def _container(self, values: Any, place: Binding, needs: Names) -> None:
        if is_a(values, dict) and dict.keys(values) >= {"__builtins__", "__name__"}:
            return  # globals, which are entered by name, from the functions that use them
        if is_a(values, (dict, list, set, collections.deque)):
            self._keep(values, place)
        else:
            self.found.container_places.setdefault(id(values), place)
        if is_a(values, dict):
            for key, value in entries(values):
                shown = repr(key) if is_a(key, (str, int)) else f"<{type(key).__name__}>"
                needed = needs | {key} if is_a(key, str) and is_a(value, PLAIN) else needs
                self.enter(value, place.child(How.ITEM, values, key, f"{place}[{shown}]"), needed)
        elif is_a(values, (list, tuple)):
            found = items(values)
            for index, value in enumerate(found):
                if not is_a(value, PLAIN) or (is_a(values, list) and len(found) <= _MOST_WATCHED):
                    self.enter(value, place.child(How.ITEM, values, index, f"{place}[{index}]"), needs)
        else:
            # Sets and deques have no place that can be read again: only whole objects in them are followed.
            for value in items(values):
                self.enter(value, root(value, f"an item of {place}"), needs)

    # --- functions ------------------------------------------------------------------------------------------

    def _cell(self, cell: CellType, place: Binding, needs: Names) -> None:
        self._single(place.child(How.CELL, cell, None, str(place)), needs)

    def _function(self, function: FunctionType, place: Binding, needs: Names) -> None:
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            self.enter(cell, root(cell, name), _ALWAYS)
        for label in ("__defaults__", "__kwdefaults__"):
            defaults = getattr(function, label) or ()
            self.enter(defaults, root(defaults, f"{place}.{label}"), _ALWAYS)
        if is_users(code.co_filename):
            self._read_names(function)
            self._own_attributes(function, place)
            self._globals(function.__globals__, code, "")

    def _own_attributes(self, function: FunctionType, place: Binding) -> None:
        table = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
        if table:
            self._keep(vars(function), place)
        for name, value in table.items():
            here = root(function, str(place)).child(How.ITEM, vars(function), name, f"{place}.{name}")
            self.enter(value, here, frozenset({name}))

    def _globals(self, table: dict[str, Any], code: CodeType, prefix: str) -> None:
        names, stored = names_in(code), stores_in(code)
        place = root(table, prefix.rstrip(".") or "globals")
        origin = _ALWAYS if is_own(code.co_filename) else _FOREIGN
        for name in sorted(names & (table.keys() | stored)):
            if name[0] == "@":  # how pytest names itself in a rewritten `assert`, to tell of one that failed
                continue
            value = table.get(name)
            here = place.child(How.ITEM, table, name, f"{prefix}{name}")
            if isinstance(value, ModuleType):
                self._python_module(value, code, f"{prefix}{name}.")
            elif name in stored:
                self._single(here, origin | {name})
            else:
                self.enter(value, here, origin | {name})

    def _python_module(self, module: ModuleType, code: CodeType, prefix: str) -> None:
        file = getattr(module, "__file__", None)
        is_library = module.__name__.partition(".")[0] in _LIBRARIES
        if file and is_users(file) and not is_library and (module, code) not in self.entered and prefix.count(".") <= 3:
            self.entered.add((module, code))
            self._globals(vars(module), code, prefix)

    def _method(self, method: MethodType, place: Binding, needs: Names) -> None:
        owner = method.__self__
        self.enter(owner, root(owner, "self"), needs)
        self.enter(method.__func__, root(method.__func__, str(place)), needs)
        self._methods(type(owner), method.__func__.__name__)

    def _bound(self, method: MethodWrapperType, place: Binding, needs: Names) -> None:
        self.enter(method.__self__, place.child(How.ATTRIBUTE, method, "__self__", str(place)), needs)

    def _partial(self, partial: functools.partial[Any], place: Binding, needs: Names) -> None:
        for label in ("func", "args", "keywords"):
            self.enter(getattr(partial, label), root(getattr(partial, label), f"{place}.{label}"), needs)

    def _proxy(self, proxy: Any, place: Binding, needs: Names) -> None:
        try:
            value = proxy.__repr__.__self__
        except Exception:  # gone, or with a `__repr__` of another kind
            return
        self.enter(value, place, needs)

    def _nothing(self, value: Any, place: Binding, needs: Names) -> None:
        """Python modules are entered by name only, from the functions that use them."""

    _kinds: tuple[tuple[Any, Callable[..., None]], ...] = (
        (torch.nn.Module, _module),
        (torch.optim.Optimizer, _optimizer),
        ((dict, list, tuple, set, frozenset, collections.deque), _container),
        (FunctionType, _function),
        (MethodType, _method),
        (MethodWrapperType, _bound),
        (functools.partial, _partial),
        (CellType, _cell),
        (type, _class),
        (torch.Generator, _generator),
        (torch.amp.GradScaler, _scaler),
        (ModuleType, _nothing),
        (weakref.ProxyTypes, _proxy),
    )


def _is_users_class(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in _LIBRARIES and not issubclass(cls, enum.Enum)


def _is_watchable(value: Any) -> bool:
    """Whether `value` is a constant of the program: it cannot change, only be replaced."""
    if type(value) is tuple:
        return bool(value) and all(is_a(item, PLAIN) for item in value)
    return is_a(value, (*PLAIN, *_FUNCTIONS, *_CONSTANTS))


def _origin(cls: type) -> Names:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    is_interactive = cls.__module__ == "__main__"  # which may have no file
    return _ALWAYS if is_interactive or (file is not None and is_own(file)) else _FOREIGN


def _function_of(entry: Any) -> FunctionType | None:
    """The user's function behind an entry of a class: a method, a property, a static or a jitted method."""
    for name in ("__func__", "fget", "func", "__wrapped__"):
        entry = getattr(entry, name, None) or entry
    return entry if is_a(entry, FunctionType) and is_own(entry.__code__.co_filename) else None


def _data_of(cls: type) -> list[tuple[str, Any]]:
    """The attributes of a class that are data, not methods or descriptors."""
    return [
        (name, value)
        for name, value in vars(cls).items()
        if name[:2] != "__" and not callable(value) and not hasattr(type(value), "__get__")
    ]


def _wrapped_by(value: Any) -> Any:
    """What a decorated function, or a jitted program or module, stands for."""
    table = table_of(value)
    if table is not None and "__wrapped__" in table:
        return table["__wrapped__"]
    giving = next((base for base in type(value).__mro__ if "__wrapped__" in vars(base)), None)
    return value.__wrapped__ if giving is not None and str(giving.__module__).startswith("treeplay.") else None

"""Functions on a walk: what a function that ran depends on, and whatever wraps or binds one.

    function    its code, defaults, closure and attributes, and the globals that its code names (`namespaces`)
    method      its object and its function
    partial     what it calls, and with what
    cached      what it wraps; what its cache gave has to be in it still

Of a function that did not run, only what the run may have read is followed: attributes, defaults, the closure. One that ran
without a path to it is looked for among all functions there are (`enter_unfound`).
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any

from treeplay.guards.caches import cache_guard
from treeplay.guards.conditions import Asked, Code
from treeplay.guards.containers import Table
from treeplay.guards.entries import content_of
from treeplay.guards.reads.functions import function_with_code, functions_with
from treeplay.guards.reads.names import inner_code
from treeplay.guards.walk.namespaces import Namespaces
from treeplay.guards.walk.walk import Walk
from treeplay.observe.lines import is_users_or_text
from treeplay.values.kinds import is_a

# Weak containers' own callbacks run whenever something dies, be it of the program's or not.
_CALLBACKS = frozenset(
    {
        "WeakKeyDictionary.__init__.<locals>.remove",
        "WeakValueDictionary.__init__.<locals>.remove",
        "WeakSet.__init__.<locals>._remove",
    }
)
# Their functions are gone once they have run.
_TRANSIENT = frozenset({"<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>"})

# What is asked of a function without calling it.
_PARAMETERS = frozenset({"__defaults__", "__kwdefaults__", "__code__"})
_CLOSURE = "__closure__"


class Functions:
    """What calls something, as a walk follows it."""

    def __init__(self, walk: Walk, namespaces: Namespaces) -> None:
        self._walk = walk
        self._namespaces = namespaces
        self._asks_parameters = walk.reads.code is None or not _PARAMETERS.isdisjoint(walk.names)

    def function(self, function: types.FunctionType, label: str) -> None:
        """Follow a Python function."""
        walk, code = self._walk, function.__code__
        if function.__module__ and function.__module__.startswith("treeplay.") and not hasattr(function, "__wrapped__"):
            return
        # A function that it made earlier may have run, though it did not itself.
        if not walk.ran(code) and not any(map(walk.ran, inner_code(code))):
            if is_users_or_text(code.co_filename):
                self._attributes(function, label)
            return
        walk.code_met.add(id(code))
        self._closure(function)
        self._parameters(function, label)
        walk.guard_table(vars(function), f"{label}.")
        self._namespaces.add_code(code, function.__globals__)

    def _closure(self, function: types.FunctionType) -> None:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name == "__class__":  # which Python fills once, for `super()`
                self._walk.enter(content_of(cell), name)
            elif self._walk.meet(cell):
                self.cell(cell, _label_of_variable(function, name))

    def _parameters(self, function: types.FunctionType, label: str) -> None:
        """Guard a function's code and defaults; that it has none counts only where it is asked for them."""
        self._walk.dependencies.functions.append(Code(function, function.__qualname__, is_asked=self._asks_parameters))
        self._walk.enter_each(function.__defaults__ or (), f"{label}.__defaults__")
        if function.__kwdefaults__:
            self._walk.enter(function.__kwdefaults__, f"{label}.__kwdefaults__")

    def _attributes(self, function: types.FunctionType, label: str) -> None:
        """Guard what may have been read of a function that did not run: what its user keeps in its attributes."""
        table, names = vars(function), self._walk.names
        if self._asks_parameters:  # as `inspect.signature` does
            self._parameters(function, label)
        if _CLOSURE in names:  # as `inspect.getclosurevars` does
            self._closure(function)
        if self._walk.meet(table):
            self._walk.dependencies.add_table(Table(table, f"{label}.", matters=names.__contains__))
            for name in [name for name in table if name in names]:
                self._walk.enter(table[name], f"{label}.{name}")

    def cell(self, cell: types.CellType, label: str) -> None:
        """Follow a closure's cell."""
        spot, attribute = (id(cell), None), (cell, "cell_contents")
        self._walk.follow(Asked(functools.partial(content_of, cell), label, spot, attribute=attribute))

    def method(self, method: types.MethodType, label: str) -> None:
        """Follow a bound method."""
        self._walk.enter(method.__self__, "self" if label == "program" else f"{label}.__self__")
        self._walk.enter(method.__func__, method.__func__.__qualname__)

    def builtin(self, function: types.BuiltinFunctionType, label: str) -> None:
        """Follow a C function to the object it is bound to."""
        owner = function.__self__
        if owner is not None and not is_a(owner, types.ModuleType):
            self._walk.enter(owner, f"{label}.__self__")

    def partial(self, partial: functools.partial[Any], label: str) -> None:
        """Follow what a partial calls, and with what."""
        self._walk.enter(partial.func, f"{label}.func")
        self._walk.enter_each(partial.args, f"{label}.args")
        self._walk.enter(partial.keywords, f"{label}.keywords")

    def wrapper(self, wrapper: Any, label: str) -> None:
        """Follow a static or class method."""
        self._walk.enter(wrapper.__func__, label)

    def property_(self, found: property, label: str) -> None:
        """Follow a property's functions."""
        for name in ("fget", "fset", "fdel"):
            self._walk.enter(getattr(found, name), label)

    def cached(self, function: Any, label: str) -> None:
        """Follow a function with a cache, whose entries must still be there; others may be added."""
        self._walk.enter(function.__wrapped__, label)
        if function.__module__ == "typing":  # whose caches forget, and whose answers are the same whenever asked
            return
        guard = cache_guard(function, f"cache of {label}")
        if guard is None:
            return
        if self._walk.meet(guard.holder):
            self._walk.dependencies.add_table(guard)
        for key, value in list(guard.recorded.items()):
            # What the function was called with: one that the next call brings may be another.
            self._walk.enter(key, f"a key of {label}")
            self._walk.enter(value, f"a result of {label}")

    def enter_unfound(self) -> None:
        """Enter functions that ran though no path leads to them."""
        met = self._walk.code_met
        wanted = [code for key, code in (self._walk.reads.code or {}).items() if key not in met and _is_kept(code)]
        functions = [(code, function_with_code(code)) for code in wanted]
        for _, function in functions:
            if function is not None:
                self._walk.enter(function, function.__qualname__)
        wanted = [code for code, function in functions if function is None]
        if wanted:  # nested in others, or made of text: all functions there are have to be looked at
            for found in functions_with(wanted):
                if id(found.__code__) not in met:
                    self._walk.enter(found, found.__qualname__)


def _is_kept(code: types.CodeType) -> bool:
    """Whether code may be that of a function which lasts, and is none of the machinery's."""
    is_ours = code.co_filename.startswith(("<treeplay", "<frozen")) or code.co_filename == typing.__file__
    return not is_ours and code.co_name not in _TRANSIENT and code.co_qualname not in _CALLBACKS


def _label_of_variable(function: types.FunctionType, name: str) -> str:
    """What a user calls a variable of the function that one is made in: its name, unless torch made the function."""
    of_torch = (function.__module__ or "").startswith("torch.")
    return f"{function.__module__}.{function.__qualname__}.{name}" if of_torch else name

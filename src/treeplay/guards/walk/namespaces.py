"""Namespaces on a walk: of the globals of code that ran, of modules and of `builtins`, the names that count.

A namespace is large, and a run reads little of it. Code tells by the names in it which globals it reads; of a module it is
known which attributes were read. So names are collected for each namespace while the walk goes on (`add_code`, `module`), what
is found under them is entered from time to time (`enter_more`), and at the end each namespace gets one guard (`guard`).
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import types
from collections.abc import Iterable
from typing import Any

from treeplay.guards.conditions import Asked
from treeplay.guards.containers import Table
from treeplay.guards.entries import is_of_the_program
from treeplay.guards.reads.names import ASKING, NAMESPACES, globals_in, imports_in, inner_code
from treeplay.guards.reads.reads import WHOLE
from treeplay.guards.walk.walk import Walk
from treeplay.torch_seam.flags import ConfigModule, is_setting
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import is_a, is_iterator

# What the import system keeps in a module, and asks for at every import.
_OF_THE_LOADER = frozenset({"__spec__", "__loader__", "__path__", "__file__", "__package__", "__cached__"})


class Namespaces:
    """The namespaces that a walk came across, each with the names that count."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._names: dict[int, tuple[dict[str, Any], dict[str, None]]] = {}
        self._entered: set[tuple[int, str]] = set()

    def add_code(self, code: types.CodeType, table: dict[str, Any]) -> None:
        """Note the names that code with these globals uses, and code in it that ran."""
        names = self._of(table)
        names |= dict.fromkeys(globals_in(code))
        if not NAMESPACES.isdisjoint(code.co_names) and not self._leaves_its_namespace(code):
            self._add_all(table)
        for inner in inner_code(code):
            if self._walk.ran(inner):
                self._walk.code_met.add(id(inner))
                self.add_code(inner, table)

    def module(self, module: types.ModuleType, _: str) -> None:
        """Note which attributes of a module were read."""
        reads, table = self._walk.reads, vars(module)
        names = dict(reads.names(module))
        if is_a(module, ConfigModule):
            self._settings(module, names)
            return
        if type(module) is not types.ModuleType:  # of a class of its own, as torch's lazy ones are
            self._walk.enter(type(module), type(module).__qualname__)
        if not reads.is_watched(module):
            names |= {name: None for name in self._walk.names if name in table}
            names[WHOLE] = None
        entered = self._of(table)
        if WHOLE in names:
            self._add_all(table)
        entered |= {name: None for name in names if name != WHOLE and name not in _OF_THE_LOADER}

    def _settings(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """Guard the settings of torch's that were read by what the module answers: it looks each up among hundreds."""
        for name in names:
            if name[:1] != "_" or is_setting(module, name):
                self._walk.follow(Asked(functools.partial(getattr, module, name, ABSENT), f"{module.__name__}.{name}"))

    def enter_more(self) -> bool:
        """Enter what is found under the names that were added since the last time; tells whether there was any."""
        has_more = False
        # A list, since `_of` may add the namespace of `builtins` meanwhile.
        for table, names in list(self._names.values()):
            builtins = table.get("__builtins__", {})
            outer = vars(builtins) if is_a(builtins, types.ModuleType) else builtins
            for name in names:
                if (id(table), name) in self._entered:
                    continue
                self._entered.add((id(table), name))
                has_more = True
                if name in table:
                    if table[name] is not ASKING.get(name):  # under another name, it asks for what no code spells out
                        # An iterator is refused, perhaps far from the code that names it.
                        label = f"{_label_of(table)}{name}" if is_iterator(table[name]) else name
                        self._walk.enter(table[name], label)
                elif name in outer:
                    self._of(outer).setdefault(name)
        return has_more

    def enter_imports(self) -> None:
        """Guard and enter modules that code of the run imports, as far as they are loaded."""
        names: dict[str, None] = {}
        for code in self._walk.reads.ran:
            names |= dict.fromkeys(name for name in imports_in(code) if name in sys.modules)
            if code is importlib.import_module.__code__:  # by names that may be computed: of modules that were read
                found = [noted.object for noted in self._walk.reads.objects.values()]
                read = {id(module) for module in found if is_a(module, types.ModuleType)}
                names |= {name: None for name, module in sys.modules.copy().items() if id(module) in read}
        if names:
            self._walk.dependencies.add_table(Table(sys.modules, "sys.modules.", tuple(names)))
            for name in names:
                self._walk.enter(sys.modules[name], name)

    def guard(self) -> None:
        """Guard each namespace under the names that were added."""
        for table, names in self._names.values():
            if names:
                self._walk.dependencies.add_table(Table(table, _label_of(table), tuple(names)))

    def _of(self, table: dict[str, Any]) -> dict[str, None]:
        return self._names.setdefault(id(table), (table, {}))[1]

    def _add_all(self, table: dict[str, Any]) -> None:
        """Guard all entries of a module but those of the import system."""
        if self._walk.meet(table):
            self._walk.dependencies.add_table(Table(table, _label_of(table), matters=is_of_the_program))
            names = self._of(table)
            names |= {name: None for name in table if is_of_the_program(name)}

    def _leaves_its_namespace(self, code: types.CodeType) -> bool:
        """Whether `code` only names what would lead to its globals: it gives its caller's frame, or had no text to evaluate."""
        if code is inspect.get_annotations.__code__:  # which every `inspect.signature` runs
            return code not in self._walk.reads.builtins.get("builtins.eval", ())
        return code is inspect.currentframe.__code__


def _label_of(table: dict[str, Any]) -> str:
    return f"{table.get('__name__', 'globals')}."

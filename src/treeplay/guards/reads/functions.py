"""The functions that code belongs to: of code that ran, the interpreter tells no function."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any


def function_with_code(code: CodeType) -> FunctionType | None:
    """The function with this code that is found by its qualified name in the module of its file; None if none is."""
    found: Any = _modules_by_file(len(sys.modules)).get(code.co_filename)
    for name in code.co_qualname.split("."):
        try:
            found = object.__getattribute__(found, "__dict__")[name] if found is not None else None
        except (AttributeError, KeyError):
            return None
    if isinstance(found, (staticmethod, classmethod)):
        found = found.__func__
    for function in (found.fget, found.fset, found.fdel) if isinstance(found, property) else (found,):
        if type(function) is FunctionType and function.__code__ is code:
            return function
    return None


def functions_with(wanted: Iterable[CodeType]) -> list[FunctionType]:
    """All functions there are with one of these codes."""
    wanted, mark = list(wanted), _frozen.mark
    found = gc.get_referrers(*wanted, *mark)
    _frozen.update(is_mark_found=any(value is mark for value in found))
    shown = [value for value in found if type(value) is FunctionType]
    return [*shown, *(function for code in wanted for function in _frozen.with_code(code))]


class _FrozenFunctions:
    """Functions that `gc.freeze` hides from `gc.get_referrers`, but for those that `function_with_code` finds. They are listed
    once after each freeze: they have to be thawed for it, and what else is alive is frozen with them again."""

    def __init__(self) -> None:
        self._functions: dict[int, list[weakref.ref[FunctionType]]] = {}
        self.mark: list[object] = []
        """Made after the last listing. A freeze hides it too: who looks for what refers to its only element finds it, or there
        was one. `gc.get_freeze_count` counts every object each time it is asked. Empty until somebody asked the first time."""

    def update(self, *, is_mark_found: bool) -> None:
        """List the functions if there was a freeze."""
        if is_mark_found:
            return
        if self.mark or gc.get_freeze_count():
            self._list()
        self.mark = [object()]

    def with_code(self, code: CodeType) -> list[FunctionType]:
        """Those with this code."""
        found = [reference() for reference in self._functions.get(id(code), ())]
        return [function for function in found if function is not None and function.__code__ is code]

    def _list(self) -> None:
        gc.collect()  # or garbage would be frozen too
        gc.unfreeze()
        everything = gc.get_objects()
        gc.freeze()
        self._functions = {}
        for value in everything:
            if type(value) is FunctionType and function_with_code(value.__code__) is not value:
                self._functions.setdefault(id(value.__code__), []).append(weakref.ref(value))


_frozen = _FrozenFunctions()


# Anew when modules were imported: the argument is how many there are. None is held: what is in it would outlive it at the end.
@lru_cache(maxsize=1)
def _modules_by_file(_: int) -> weakref.WeakValueDictionary[str, ModuleType]:
    modules = [module for module in list(sys.modules.values()) if isinstance(module, ModuleType)]
    return weakref.WeakValueDictionary({str(vars(module).get("__file__")): module for module in modules})

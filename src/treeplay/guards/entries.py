"""Entries of dictionaries, lists, classes and objects: which one a place is, and which of them count."""

from __future__ import annotations

import functools
import gc
import threading
import types
from collections.abc import Collection, Iterable
from typing import Any

import torch

from treeplay.guards.conditions import ContainerGuard
from treeplay.guards.containers import Table
from treeplay.guards.reads.names import stores_within
from treeplay.guards.walk.kinds import HARMLESS
from treeplay.torch_seam.flags import is_setting
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import is_a, module_of, table_of
from treeplay.values.place import How, Place

# What Python itself puts into the dictionary of a class, and none of a program's business.
_OF_THE_CLASS = frozenset(
    [
        "__doc__",
        "__module__",
        "__annotations__",
        "__static_attributes__",
        "__firstlineno__",
        "__slotnames__",
        "__abstractmethods__",
        "__weakref__",
        "__dict__",
        "__parameters__",
        "__orig_bases__",
        "__annotate__",
        "__annotations_cache__",
        "__match_args__",
        *("_abc_impl", "_abc_registry", "_abc_cache", "_abc_negative_cache", "_abc_negative_cache_version"),
    ]
)


def spot_of(place: Place) -> tuple[int, Any] | None:
    """Which entry of which dictionary, list or object a place is; None for a gradient, which is in none."""
    holder, key = place.holder, place.key
    if place.how is How.CELL:
        return id(holder), None
    if place.how is How.ATTRIBUTE:
        table = real_table(holder) if is_a(holder, type) else table_of(holder)
        return (id(table), key) if table is not None and key in table else (id(holder), key)
    return (id(holder), hashed(key)) if place.how in (How.ITEM, How.SLOT) else None


def keys_of(guard: ContainerGuard) -> Iterable[Any]:
    """The keys of what a guard recorded, or its positions."""
    return guard.recorded if isinstance(guard, Table) else range(len(guard.recorded))


def hashed(key: Any) -> Any:
    """A key as a part of a spot: by its value if nobody can have redefined that."""
    return key if type(key) in (str, int) else id(key)


def matters(names: Collection[str], asks: bool, name: Any) -> bool:
    """Whether an entry of a class counts, where the run read `names`; `asks`: or computed some."""
    if name in _OF_THE_CLASS:
        return False
    if is_a(name, str) and name[:2] == "__" and name[-2:] == "__":
        return True
    return asks or name in names


def is_of_the_program(name: Any) -> bool:
    """Whether an entry of a module is none that the import system keeps there."""
    return not (is_a(name, str) and name[:2] == "__" and name[-2:] == "__")


def real_table(cls: type) -> dict[str, Any]:
    """The dictionary behind the view of it that a class shows."""
    # A proxy has no version, and only the garbage collector is told which dictionary is behind it.
    table: dict[str, Any] = gc.get_referents(vars(cls))[0]
    return table


def is_found_on(cls: type, name: str) -> bool:
    """Whether a class gives `name` by something that goes before the object's own attributes."""
    for base in cls.__mro__:
        if name in vars(base):
            return hasattr(type(vars(base)[name]), "__set__")
    return False


def entry_of(value: Any, name: str) -> Any:
    """What an object's own dictionary of attributes holds, without asking its class; `ABSENT` if nothing. Of a setting of
    torch's, which is in no dictionary, what it is set to."""
    if is_setting(value, name):
        return getattr(value, name, ABSENT)
    table = table_of(value)
    return ABSENT if table is None else table.get(name, ABSENT)


def content_of(cell: types.CellType) -> Any:
    """What a closure cell holds."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def behind_proxy(proxy: Any) -> Any:
    """What a weak proxy stands for; None if that is gone, or does not show."""
    try:
        # A proxy does not give away what it refers to; a method that is bound to that does.
        return proxy.__repr__.__self__
    except Exception:  # gone, or with a `__repr__` of another kind
        return None


def names_in_thread(local: threading.local) -> tuple[str, ...]:
    """Under which names this thread has put something into a `threading.local`."""
    return tuple(vars(local))


def users_attributes(value: Any) -> dict[str, Any]:
    """What a user has put on a jitted function, or on an object of a library's class: what its own class does not assign.

    Of a jitted module, the module has it."""
    table = table_of(value)
    if not table or is_a(value, HARMLESS):
        return {}
    is_ours = module_of(type(value)).startswith("treeplay.")
    if is_ours and ("__wrapped__" not in table or isinstance(value, torch.nn.Module)):
        return {}
    entries = [(name, entry) for cls in type(value).__mro__ for name, entry in vars(cls).items()]
    functions = (entry for _, entry in entries if is_a(entry, types.FunctionType))
    assigned = frozenset[str]().union(*(stores_within(function.__code__) for function in functions))
    if is_ours:  # and what its cached properties and `functools.update_wrapper` have put there
        assigned |= {name for name, entry in entries if is_a(entry, functools.cached_property)}
        assigned |= {name for name in table if name[:2] == "__"}
    return {name: entry for name, entry in dict.copy(table).items() if name not in assigned}

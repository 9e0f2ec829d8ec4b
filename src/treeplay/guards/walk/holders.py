"""Holders on a walk: what keeps values neither in attributes nor in items, each with a way of its own to ask for them.

tensor                its facts, what users put on it, and its hooks
weak reference        whether it is alive, and what it leads to, which no guard keeps alive
context variable      what it holds now
threading.local       what this thread has put there
logger                which messages it takes, and what users put on it
memory                its bytes, or its objects; what is too large to be compared on each call is only noted
"""

from __future__ import annotations

import contextvars
import functools
import logging
import weakref
from typing import Any

import torch

from treeplay.guards.conditions import Asked, Data
from treeplay.guards.containers import Table
from treeplay.guards.entries import behind_proxy, entry_of, names_in_thread, users_attributes
from treeplay.guards.memory import size_of
from treeplay.guards.walk.walk import Walk
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.layers import TENSOR_HOOKS
from treeplay.torch_seam.patched import ABSENT
from treeplay.values.kinds import is_a

_MOST_BYTES = 1 << 20  # of memory that is compared on each call


def tensor(walk: Walk, found: torch.Tensor, label: str) -> None:
    """Guard a tensor's facts, and follow what hangs on it."""
    if is_a(found, FakeTensor):
        return
    # A guard would keep alive what only a weak reference leads to.
    if id(found) not in walk.weak:
        walk.dependencies.tensors[id(found)] = found, label
    walk.enter(type(found), type(found).__qualname__)
    walk.guard_table(vars(found), f"{label}.")
    for name in TENSOR_HOOKS:
        walk.enter(getattr(found, name, None), f"{label}.{name}")


def weak_reference(walk: Walk, reference: weakref.ref[Any], label: str) -> None:
    """Guard what a weak reference refers to, without keeping it alive."""
    walk.dependencies.asked.append(Asked(functools.partial(_is_alive, reference), f"{label}() is alive"))
    walk.dependencies.references.append(reference)
    # A subclass may do more when it is called.
    found = weakref.ref.__call__(reference)
    if found is not None and id(found) in walk.seen:
        walk.twice.add(id(found))
    elif found is not None:
        walk.weak.add(id(found))
        walk.enter(found, f"{label}()")


def proxy(walk: Walk, found: Any, label: str) -> None:
    """Guard what a weak proxy stands for, as of a weak reference."""
    value = behind_proxy(found)
    if value is not None:
        weak_reference(walk, weakref.ref(value), label)


def _is_alive(reference: weakref.ref[Any]) -> bool:
    return weakref.ref.__call__(reference) is not None


def context_variable(walk: Walk, variable: contextvars.ContextVar[Any], label: str) -> None:
    """Guard what a context variable holds, and follow it."""
    walk.follow(Asked(functools.partial(variable.get, ABSENT), f"{label}.get()"))


def of_thread(walk: Walk, local: Any, label: str) -> None:
    """What a thread has put into a `threading.local`: another thread has other values there."""
    for name in {**vars(local), **dict.fromkeys(walk.names)}:
        if name in vars(local) or (not hasattr(type(local), name) and name in walk.reads.names(local)):
            walk.follow(Asked(functools.partial(entry_of, local, name), f"{label}.{name}"))
    names = Asked(functools.partial(names_in_thread, local), f"names in {label}", is_fresh=True)
    walk.dependencies.asked.append(names)
    walk.enter(type(local), type(local).__qualname__)  # whose data all threads share


def logger(walk: Walk, found: logging.Logger, _: str) -> None:
    """Of a logger which messages it takes, and what users put on it: what it keeps besides grows and is cached as others use
    it."""
    above: logging.Logger | None = found
    tables: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [(vars(found.manager), "logging.", ("_disable",))]
    while above is not None:
        kept = users_attributes(above)
        entries = dict.fromkeys(("level", "disabled", "parent", "manager", *kept))
        tables.append((vars(above), f"logger {above.name}.", tuple(entries)))
        for name, entry in kept.items():
            walk.enter(entry, f"logger {above.name}.{name}")
        above = above.parent
    for table, name, names in tables:
        if walk.meet(table):
            walk.dependencies.add_table(Table(table, name, names))


def memory(walk: Walk, found: Any, label: str) -> None:
    """Guard the bytes of memory without tensors."""
    if getattr(getattr(found, "dtype", None), "hasobject", False):
        walk.enter_each(found.ravel().tolist(), label)
    if size_of(found) > _MOST_BYTES:
        walk.large.append((found, label))
    else:
        walk.dependencies.data.append(Data(found, label))

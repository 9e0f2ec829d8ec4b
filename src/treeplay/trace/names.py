"""The names a function's code uses: which globals and attributes it reads, and which methods it calls."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType

import torch

_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "LOAD_ATTR", "STORE_ATTR", "LOAD_DEREF", "IMPORT_NAME"})

_STORES = frozenset({"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_ATTR"})


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """Every global, attribute and method name in `code` and in the functions it defines."""
    names = set(code.co_names)
    for inner in _inner(code):
        names |= names_in(inner)
    return frozenset(names)


@lru_cache(maxsize=4096)
def values_in(code: CodeType) -> frozenset[str]:
    """The names read or written as values, so that `opt.step()` does not count as a use of a number named `step`."""
    names: set[str] = set()
    for instruction in dis.get_instructions(code):
        is_call = instruction.opname == "LOAD_ATTR" and "NULL|self" in (instruction.argrepr or "")
        if instruction.opname in _READS and not is_call:
            names.add(str(instruction.argval))
    for inner in _inner(code):
        names |= values_in(inner)
    return frozenset(names)


@lru_cache(maxsize=4096)
def stores_in(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes that `code`, or a function it defines, assigns or deletes."""
    stored = {str(item.argval) for item in dis.get_instructions(code) if item.opname in _STORES}
    return frozenset(stored.union(*(stores_in(inner) for inner in _inner(code))))


@lru_cache(maxsize=4096)
def strings_in(code: CodeType) -> frozenset[str]:
    """The string constants of `code` and of the functions it defines: keys that it may look up."""
    strings = {constant for constant in code.co_consts if isinstance(constant, str)}
    return frozenset(strings.union(*(strings_in(inner) for inner in _inner(code))))


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def methods_used(cls: type, entry: str) -> Iterator[FunctionType]:
    """The plain functions of `cls` that its method `entry` can call on `self`, judged by their names."""
    waiting, seen = [entry], {entry}
    while waiting:
        method = getattr(cls, waiting.pop(), None)
        if isinstance(method, property):
            method = method.fget
        if not isinstance(method, FunctionType) or _is_of_base(method):
            continue
        yield method
        fresh = names_in(method.__code__) - seen
        seen |= fresh
        waiting.extend(fresh)


def _is_of_base(method: FunctionType) -> bool:
    # What every module inherits (`state_dict`, `apply`, ...) says nothing about this one.
    return torch.nn.Module.__dict__.get(method.__name__) is method

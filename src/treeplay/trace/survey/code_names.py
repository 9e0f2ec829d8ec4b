"""The names a function's code uses: which globals and attributes it reads, and which methods it calls."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import CodeType, FunctionType

import torch

_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "LOAD_ATTR", "STORE_ATTR", "LOAD_DEREF", "IMPORT_NAME"})

_STORES = frozenset({"STORE_GLOBAL", "STORE_NAME", "STORE_ATTR", "DELETE_GLOBAL", "DELETE_NAME", "DELETE_ATTR"})


@lru_cache(maxsize=4096)
def names_in(code: CodeType) -> frozenset[str]:
    """Every global, attribute and method name in `code` and in the functions it defines."""
    return _and_within(names_in, code, code.co_names)


@lru_cache(maxsize=4096)
def values_in(code: CodeType) -> frozenset[str]:
    """The names read or written as values, so that `opt.step()` does not count as a use of a number named `step`."""
    read = (step for step in dis.get_instructions(code) if step.opname in _READS)
    # Python 3.12 has no LOAD_METHOD: there it is a LOAD_ATTR with a flag.
    names = {str(step.argval) for step in read if step.opname != "LOAD_ATTR" or "NULL|self" not in step.argrepr}
    return _and_within(values_in, code, names)


@lru_cache(maxsize=4096)
def stores_in(code: CodeType) -> frozenset[str]:
    """The names of globals and attributes that `code`, or a function it defines, assigns or deletes."""
    stored = {str(step.argval) for step in dis.get_instructions(code) if step.opname in _STORES}
    return _and_within(stores_in, code, stored)


@lru_cache(maxsize=4096)
def strings_in(code: CodeType) -> frozenset[str]:
    """The string constants of `code` and of the functions it defines: keys that it may look up."""
    return _and_within(strings_in, code, {constant for constant in code.co_consts if isinstance(constant, str)})


def _and_within(ask: Callable[[CodeType], frozenset[str]], code: CodeType, own: Iterable[str]) -> frozenset[str]:
    """What `ask` says of the functions that `code` defines, added to what is its own."""
    return frozenset(own).union(*(ask(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


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

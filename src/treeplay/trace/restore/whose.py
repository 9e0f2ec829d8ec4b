"""Whose is a change that was found after a run without effect: the program's, or another thread's?

A trace, and each later run of a program for its recording (`rerun.py`, `opaque/`), undoes what the program did and nothing
else. With no other thread there is nothing to ask. Else:

    a fake or a symbolic number stands there           ours
    an attribute of a watched object                   ours if the run assigned it: stores are noted
    anything in a container                            ours if the run came across it and has code that changes containers
    a gradient                                         ours if the run assigned it, or ran a backward
    a random generator                                 ours if the run called something that draws, or may have
    an array, or other memory without objects          ours if the run came across it and has code that writes memory

What the run came across is what its guards are about (`guards/walk/reach.py`). The answer errs towards the program: then
another thread's change of the same container may be undone with the program's own.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
import dis
import enum
import inspect
import linecache
import logging
import os
import random
import re
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.guards.reads.names import names_in, names_within, stores_within
from treeplay.guards.reads.reads import WHOLE, Reads
from treeplay.guards.walk.reach import Reach
from treeplay.guards.walk.walk import TooMuch
from treeplay.observe.lines import TORCH
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.layers import MODULE_TABLES
from treeplay.torch_seam.scripts import ScriptModule
from treeplay.trace.call import Call, roots_of
from treeplay.trace.numbers.scalars import scalar_of
from treeplay.trace.survey.found import Survey
from treeplay.values.flatten import flatten
from treeplay.values.kinds import is_a, module_of
from treeplay.values.place import How, Place


class Whose:
    """What a run may have changed, once it is over. `gone`: what was before where something else is now."""

    def __init__(self, program: Any, call: Call, found: Survey, gone: Sequence[Any], reads: Reads) -> None:
        self._program, self._call, self._found, self._reads = program, call, found, reads
        self._owners: dict[int, Any] = {}  # watched objects, by the dictionary of their attributes
        self._gone = gone  # the run may have changed it, and put something else in its place
        self._seen: frozenset[int] | None = None  # None: everything, or not looked at yet
        self._has_looked = False
        self.disturbed: Place | None = None
        """Where another thread changed what the run has read, if it did."""

    def is_ours(self, container: Any, place: Place, after: Any) -> bool:
        """Whether the program made a change in a container, at `place` in it; a container as a whole has a place itself."""
        if is_stand_in(after) or id(container) in self._found.of_thread or id(container) in self._found.sealed:
            return True
        holder = self._owner_of(container)
        if holder is not None and isinstance(place.key, str):
            noted = self._reads.objects.get(id(holder))
            if noted is None:
                return False
            if place.key in noted.assigned or WHOLE in noted.read:
                return True
            return self._theirs(place, is_read=place.key in noted.read)
        if self._reads.code is None:
            return True
        if self._is_group(container):  # of which each call reads the numbers anew
            return self._may(changes_in, place)
        if id(container) not in self._found.given and not self._has_seen(container):
            return False
        if hasattr(type(container), "__missing__"):  # which makes an entry where one is asked for
            return True
        # Of an object not watched.
        if _of_torch(place) or self._may(changes_in, place) or self._may(assigned_in, place):
            return True
        return self._theirs(place, is_read=True)

    def may_have_set(self, place: Place, after: Any) -> bool:
        """Whether the program may have rebound a cell, a global, a slot or a class's attribute."""
        # Nothing notes who stores into a closure's cell.
        if is_stand_in(after) or place.how is How.CELL:
            return True
        name = place.key.__name__ if place.how is How.SLOT else place.key
        is_named = self._reads.may_have_run(lambda code: name in names_in(code))
        return is_named or "builtins.setattr" in self._reads.builtins

    def may_have_drawn(self, source: Any) -> bool:
        """Whether the program may have used a random generator of Python's or NumPy's."""
        if not isinstance(source, random.Random):
            return self._reads.code is None or self._has_seen(source)
        is_called = not self._reads.methods.isdisjoint(_DRAWS_OF_PYTHON)
        return is_called or self._reads.may_have_run(lambda code: code.co_filename == random.__file__)

    def may_have_written(self, memory: Any) -> bool:
        """Whether the program may have written into an array, a buffer or a context variable."""
        # Threads have context variables of their own.
        if self._reads.code is None or is_a(memory, contextvars.ContextVar):
            return True
        if is_a(memory, ScriptModule):  # whose code is none of Python's
            return self._has_seen(memory)
        # Of NumPy's own code what a program asks it for tells more.
        asked = (one for one in self._code() if _NUMPY not in one.co_filename)
        return any(map(writes_memory, asked)) and self._has_seen(memory)

    def may_have_set_gradients(self) -> bool:
        """Whether the program may have put something into a gradient."""
        is_called = not self._reads.methods.isdisjoint(_BACKWARD)
        return is_called or self._reads.may_have_run(lambda code: "grad" in stores_within(code))

    def _may(self, changed_in: Callable[[CodeType], frozenset[Any] | None], place: Place) -> bool:
        """Whether code that ran may change what stands under this key or name."""
        changed = [changed_in(code) for code in self._code()]
        return any(keys is None or place.key in keys for keys in changed)

    def _is_group(self, container: Any) -> bool:
        return any(container is group for known in self._found.optimizers for group in known.param_groups)

    def _theirs(self, place: Place, *, is_read: bool) -> bool:
        if is_read and self.disturbed is None:
            self.disturbed = place
        return False

    def _owner_of(self, container: Any) -> Any:
        """The watched object whose attributes a dictionary holds, or None."""
        if not self._owners:
            for value in self._found.kept:
                table = getattr(value, "__dict__", None) if self._reads.is_watched(value) else None
                if isinstance(table, dict):
                    self._owners[id(table)] = value
        return self._owners.get(id(container))

    def _has_seen(self, value: Any) -> bool:
        if not self._has_looked:
            self._has_looked = True
            self._seen = self._look()
        return self._seen is None or id(value) in self._seen

    def _look(self) -> frozenset[int] | None:
        roots = [*roots_of(self._program, self._call), *((value, "before") for value in self._gone)]
        try:
            return frozenset(Reach(self._reads).walk(roots).met)
        except (TooMuch, Refusal):  # what cannot be walked counts as seen
            return None

    def _code(self) -> Iterator[CodeType]:
        """The code that ran, but for what changes only objects of its own."""
        return (one for one in self._reads.ran if not keeps_to_itself(one.co_filename))


@lru_cache(maxsize=4096)
def keeps_to_itself(file: str) -> bool:
    """Whether code of a file changes no container that a program gives it: torch's but for schedulers, and some of Python's."""
    if file.startswith(TORCH):
        return not file.startswith(_SCHEDULES)
    return file.startswith("<frozen ") or file in _PYTHONS


def is_stand_in(value: Any) -> bool:
    """Whether a value is, or has in it, what stands for something only while a program is traced."""
    if isinstance(value, FakeTensor) or scalar_of(value) is not None:
        return True
    leaves, _ = flatten(value)
    return any(isinstance(leaf, FakeTensor) or scalar_of(leaf) is not None for leaf in leaves)


@lru_cache(maxsize=4096)
def changes_in(code: CodeType) -> frozenset[Any] | None:
    """The keys under which `code`, or a function it defines, may change a dict, list, set or deque that was there before:
    `d["a"] = 1` changes "a". None for any."""
    if not CHANGES.isdisjoint(code.co_names):
        return None
    keys: set[Any] = set()
    before = None
    for step in dis.get_instructions(code):
        if step.opname in STORES_OF_ITEMS:
            # The key is what was pushed last: of a slice, where it ends.
            if before is None or before.opname != "LOAD_CONST" or step.opname == "STORE_SLICE":
                return None
            keys.add(before.argval)
        elif step.argrepr in _IN_PLACE:  # of a list or a set, for all that is known
            return None
        if step.opname != "EXTENDED_ARG":
            before = step
    within = [changes_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)]
    return None if None in within else frozenset(keys).union(*(found for found in within if found is not None))


@lru_cache(maxsize=4096)
def writes_memory(code: CodeType) -> bool:
    """Whether `code`, or a function it defines, may write into memory that was there before, as by `a[0] = 1` or `out=a`."""
    changed = changes_in(code)
    if changed is None or changed or not WRITES.isdisjoint((*code.co_names, *stores_within(code))):
        return True
    return any("out" in found for found in code.co_consts if isinstance(found, tuple)) or any(
        writes_memory(inner) for inner in code.co_consts if isinstance(inner, CodeType)
    )


def assigned_in(code: CodeType) -> frozenset[str] | None:
    """The names that `code`, or a function it defines, may assign as attributes or globals; None for any."""
    return stores_within(code) if _ASSIGNS_ANY.isdisjoint(names_within(code)) else None


def _of_torch(place: Place) -> bool:
    """Whether a container belongs to an object of torch's, whose code changes it."""
    here: Place | None = place
    while here is not None:
        if module_of(type(here.holder)).startswith("torch.") or isinstance(here.holder, torch.optim.Optimizer):
            return True
        if here.key in MODULE_TABLES:
            return True
        here = here.parent
    return False


_SCHEDULES = tuple(f"{TORCH}optim/{name}.py" for name in ("lr_scheduler", "swa_utils"))
_PYTHONS = frozenset(
    str(module.__file__)
    for module in (
        abc,
        contextlib,
        dataclasses,
        enum,
        inspect,
        linecache,
        logging,
        re,
        threading,
        types,
        typing,
        warnings,
        weakref,
    )
)
STORES_OF_ITEMS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
_ASSIGNS_ANY = frozenset({"setattr", "delattr", "__setattr__", "__delattr__", "vars", "globals", "__dict__"})
_IN_PLACE = frozenset({"+=", "*=", "|=", "&=", "-=", "^="})
# fmt: off
CHANGES = frozenset({
    "append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem", "remove", "clear", "reverse",
    "rotate", "sort", "add", "discard", "update", "setdefault", "intersection_update", "difference_update",
    "symmetric_difference_update", "heappush", "heappop", "heapify", "insort", "insort_left", "insort_right", "setitem",
    "delitem", "iadd", "iconcat", "shuffle", "__setitem__", "__delitem__", "__dict__", "move_to_end",
})
WRITES = frozenset({
    "value", "contents", "raw", "memmove", "memset", "write", "writelines", "read", "read1", "readinto", "readline",
    "readlines", "seek", "truncate", "copyto", "fill", "put", "place", "putmask", "partition", "resize", "itemset",
    "setfield", "byteswap", "frombytes", "fromlist", "at", "__next__",
})
# fmt: on
_NUMPY = f"{os.sep}numpy{os.sep}"
_BACKWARD = frozenset({"_EngineBase.run_backward", "_ImperativeEngine.run_backward"})
_DRAWS_OF_PYTHON = frozenset(f"Random.{name}" for name in ("random", "getrandbits", "seed", "setstate"))

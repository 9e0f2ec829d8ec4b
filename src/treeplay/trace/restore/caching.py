"""Caches: what functions (`functools.lru_cache`), and tables of libraries, keep of a trace is not there for later calls.

A trace that misses such a cache fills it with tensors that have no data, and with symbols for numbers. No survey sees into one,
so nothing puts it back: the program would be given these from then on, in calls that run as they are too.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from contextlib import suppress
from typing import Any

import torch

from treeplay.guards.caches import entries_in, is_limited, table_of_cache
from treeplay.trace.numbers.scalars import SYMBOLS
from treeplay.trace.restore.bare import bare, fill
from treeplay.trace.traced import TracedRun
from treeplay.values.kinds import MUTABLE_CONTAINERS, is_a, module_of, table_of

_CACHING = type(functools.lru_cache(len))
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_DEEPEST = 4  # tensors and numbers in the containers and objects of a result


def forget_cached(run: TracedRun) -> None:
    """Have each function that keeps a tensor or a number of a trace forget it. That is a look through all objects there are,
    which takes long: not where only the frames of a run that came to no end hold such ones. What stands for an input is in
    hands of ours as well: functions that the survey has found are asked for it."""
    tape, world = run.tracer.tape, run.tracer.world

    def is_of_trace(value: Any) -> bool:
        if is_a(value, SYMBOLS):
            return getattr(value.node, "world", None) is world
        return tape.is_own(value)

    if tape.leaked() or world.has_left():
        _let_frames_go(sys.exception())
    if tape.leaked() or world.has_left():
        # All of them: a library's function is called by code that no survey reads.
        every = [value for value in gc.get_objects() if type(value) is _CACHING]
        tape.was_cached += _forget_in_functions(every, is_of_trace)
    elif world.made:
        tape.was_cached += _forget_in_functions(run.found.cached, is_of_trace)


def _let_frames_go(error: BaseException | None) -> None:
    """Clear the frames that an exception of ours holds, with others of ours that led to it: all of them are this run's.

    An error of the program's may have come through others before, and to clear a generator or a coroutine would close it."""
    while error is not None and module_of(type(error)).startswith("treeplay."):
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if not frame.f_code.co_flags & _SUSPENDED:
                with suppress(RuntimeError):  # it runs
                    frame.clear()
        error = error.__context__


def _forget_in_functions(functions: Iterable[Any], is_of_trace: Callable[[Any], bool]) -> list[Any]:
    """Those that had something to forget."""
    found = []
    for function in functions:
        # By its key too: a number that was decided may be one.
        keys = [key for key, value in entries_in(function) if _holds((key, value), is_of_trace, _DEEPEST + 1)]
        if not keys:
            continue
        found.append(function)
        if is_limited(function):
            # Its entries are linked outside of Python, and none can be taken out alone. It may drop any of them by itself.
            function.cache_clear()
            continue
        entries = table_of_cache(function) or {}
        for key in keys:
            entries.pop(key, None)
    return found


def forget_in_tables(kept: Sequence[torch.Tensor]) -> None:
    """Take tensors of a trace out of the dictionaries, lists, deques and sets that keep them.

    An attribute or a global stays: to be without it is no better for a program than to find such a tensor there."""
    values: list[Any] = [*kept]
    known = {id(value) for value in values}
    for _ in range(_DEEPEST if values else 0):
        tuples: list[Any] = []
        for holder in gc.get_referrers(*values):
            if holder is values or holder is kept:
                continue
            if type(holder) is tuple and id(holder) not in known:
                tuples.append(holder)
            elif is_a(holder, MUTABLE_CONTAINERS) and not _are_attributes(holder):
                _take_out(holder, known)
        known |= {id(value) for value in tuples}
        values = tuples
        if not values:
            break


def _are_attributes(holder: Any) -> bool:
    """Whether a container is a dictionary of names: of a module, a class or an object."""
    if not is_a(holder, dict):
        return False
    return dict.__contains__(holder, "__name__") or any(table_of(owner) is holder for owner in gc.get_referrers(holder))


def _take_out(holder: Any, known: Set[int]) -> None:
    content = bare(holder)
    if isinstance(content, dict):
        for key in [key for key, value in content.items() if id(value) in known or id(key) in known]:
            (OrderedDict if is_a(holder, OrderedDict) else dict).pop(holder, key, None)
        return
    left = type(content)(value for value in content if id(value) not in known)
    if len(left) != len(content):
        fill(holder, left)


def _holds(value: Any, is_of_trace: Callable[[Any], bool], depth: int) -> bool:
    if is_a(value, (torch.Tensor, *SYMBOLS)):
        return is_of_trace(value)
    if not depth or is_a(value, torch.nn.Module) or callable(value):
        return False
    return any(_holds(part, is_of_trace, depth - 1) for part in gc.get_referents(value))

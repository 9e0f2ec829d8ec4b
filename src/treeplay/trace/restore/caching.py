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

from treeplay.guards.caches import Filled, Room, codes_behind, entries_in, is_limited, keeps_results, table_of_cache
from treeplay.guards.outside import caches_emptied
from treeplay.observe.lines import is_users_or_text
from treeplay.trace.numbers.scalars import SYMBOLS
from treeplay.trace.restore.bare import bare, fill
from treeplay.trace.run.caches import too_early_for
from treeplay.trace.traced import TracedRun
from treeplay.values.kinds import MUTABLE_CONTAINERS, is_a, module_of, table_of

_CACHING = type(functools.lru_cache(len))
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_DEEPEST = 4  # tensors and numbers in the containers and objects of a result


def check_steady(cached: Iterable[Filled], misses: dict[int, int] | None) -> None:
    """Raise `TooEarly` where a full cache was asked for what it lacked since the last try: a trace would have it drop an entry,
    which nothing takes back, and the call that runs as it is once more. `misses`: how often it had been asked so by then."""
    if misses is None:
        return
    for each in [each for each in cached if is_limited(each.function)]:
        before, misses[id(each.function)] = misses.get(id(each.function)), each.misses
        if before != each.misses and not Room.now(each.function).left:
            raise too_early_for(each.function)


def check_cached(run: TracedRun) -> None:
    """Raise `TooEarly` after a run that asked a cache for what it lacked: no guard could tell of that, nor of an entry that is
    not there any more, and what the function did besides is done in a call that runs as it is."""
    if caches_emptied(run.reads.methods, run.reads.ran) is None:  # which is refused, as no replay does it
        for each in run.found.cached:
            if _has_missed(run, each) or each.lacks_an_entry():
                raise too_early_for(each.function, run.tracer.tape)


def check_unfound(run: TracedRun, cached: Iterable[Any]) -> None:
    """Raise `TooEarly` where a function may have missed that the survey had not found, of those that the run met."""
    known = {id(each.function) for each in run.found.cached}
    for function in cached:
        codes = [code for code in codes_behind(function) if is_users_or_text(code.co_filename)]
        if (
            keeps_results(function)
            and id(function) not in known
            and any(id(code) in (run.reads.code or {}) for code in codes)
        ):
            raise too_early_for(function, run.tracer.tape)


def _has_missed(run: TracedRun, each: Filled) -> bool:
    """Whether a cache lacked what the run asked for, as far as can be told from what other threads asked for."""
    codes, ran = codes_behind(each.function), run.reads.code
    if not codes or ran is None:
        return each.has_missed()
    # Where it computed something and counts nothing, it was emptied since, by C code that nobody notes.
    is_emptied = id(codes[-1]) in ran and not each.function.cache_info().misses
    return is_emptied or (each.has_missed() and any(id(code) in ran for code in codes))


def forget_cached(run: TracedRun) -> None:
    """Have each function that keeps something of a trace forget it: those that the survey found hold what they held, as far as
    they can. To find others is a look through all objects there are, which takes long: not where only the frames of a run that
    came to no end hold tensors or numbers of it."""
    tape, world, cached = run.tracer.tape, run.tracer.world, run.found.cached

    def is_of_trace(value: Any) -> bool:
        if is_a(value, SYMBOLS):
            return getattr(value.node, "world", None) is world
        return tape.is_own(value)

    # Else another thread may have emptied one.
    is_emptied = bool(cached) and caches_emptied(run.reads.methods, run.reads.ran) is not None
    missed = [each for each in cached if is_emptied or _has_missed(run, each)]
    for each in missed:
        each.put_back()
    tape.was_cached += _forget_in_functions([each.function for each in missed], is_of_trace)
    if tape.leaked() or world.has_left():
        _let_frames_go(sys.exception())
    if tape.leaked() or world.has_left():
        # All of them: a library's function is called by code that no survey reads.
        every = [value for value in gc.get_objects() if type(value) is _CACHING]
        tape.was_cached += _forget_in_functions(every, is_of_trace)
    if run.misses is not None:
        run.misses.update((id(each.function), each.function.cache_info().misses) for each in cached)


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

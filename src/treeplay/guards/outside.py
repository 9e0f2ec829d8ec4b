"""What a program asks of the world outside of Python's objects: settings that can be asked again, and what never repeats.

The run's calls of builtin functions are known by name. A setting of torch's, of NumPy's or of `decimal` is asked again on each
call; a clock or a source of random bits gives another answer each time, so that a recording would freeze the first.
"""

from __future__ import annotations

import decimal
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import CodeType
from typing import Any

import torch

from treeplay.guards.conditions import Asked
from treeplay.guards.reads.effects import mentions
from treeplay.observe.lines import is_users_or_text
from treeplay.values.location import Location
from treeplay.values.same import is_value

Asking = tuple[str, Location | None]
"""What is asked, and the line that does."""

_CLOCKS = frozenset(
    f"time.{name}{unit}"
    for name in ("time", "perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime")
    for unit in ("", "_ns")
) | {
    # Of a time that is given, most of these repeat; but of a call only the name is known.
    *(f"time.{name}" for name in ("localtime", "gmtime", "ctime", "asctime", "strftime")),
    *("now", "utcnow", "today", "posix.times", "nt.times", "posix.getloadavg", "resource.getrusage"),
}
_ENTROPY = frozenset({"posix.urandom", "nt.urandom", "posix.getrandom", "_uuid.generate_time_safe"})
_THREADS = frozenset({"_thread.start_new_thread", "_thread.start_new", "_thread.start_joinable_thread"})
# What they answer is kept in C, where nothing reports a change; without arguments each can be asked again.
_ASKED_AGAIN = frozenset(
    {
        "sys.getrecursionlimit",
        "sys.get_int_max_str_digits",
        "gc.get_threshold",
        "gc.isenabled",
        "gc.get_debug",
        "_csv.field_size_limit",
        "posix.getcwd",
        "nt.getcwd",
        "posix.getpid",
        "nt.getpid",
        "_thread.get_ident",
        "_thread.get_native_id",
        "faulthandler.is_enabled",
        "sys.getswitchinterval",
        "_socket.getdefaulttimeout",
        "torch._C._check_sparse_tensor_invariants",
    }
)
# `inspect` has the limit of recursion for its own loops, and Inductor raises it; a message is told which thread wrote it.
_ASK_FOR_THEMSELVES = frozenset({inspect.__file__, logging.__file__})
_GETTERS = ("get_", "_get_", "is_", "_is_", "are_")
# The warm call asks for these anyway, or nothing is recorded where they are not as usual.
_KNOWN = frozenset(
    [
        "is_grad_enabled",
        "is_inference_mode_enabled",
        "get_default_dtype",
        "is_autocast_enabled",
        "is_autocast_cpu_enabled",
        "is_autocast_cache_enabled",
        "_get_tracing_state",
        "is_anomaly_enabled",
        "is_anomaly_check_nan_enabled",
        "_is_torch_function_enabled",
        "_is_torch_function_all_disabled",
        "_is_torch_function_mode_enabled",
        "_get_deterministic_algorithms",
        "_get_float32_matmul_precision",
    ]
)


def never_the_same(builtins: Mapping[str, Sequence[CodeType]]) -> Asking | None:
    """A clock or a source of random bits that the run asked, and where; None if there is none."""
    return _asked(builtins, _CLOCKS | _ENTROPY)


def threads_started(builtins: Mapping[str, Sequence[CodeType]]) -> Asking | None:
    """How the run started a thread, and where; None if it started none."""
    return _asked(builtins, _THREADS)


def signals_asked(builtins: Iterable[str], ran: Iterable[CodeType]) -> Asking | None:
    """How the run set or asked for a handler or a timer of signals, or sent one, and where; None if it did not."""
    name = min((name for name in builtins if name.startswith("_signal.")), default=None)
    # The standard library calls it, for whoever asked that.
    return (name.removeprefix("_"), _place_of(name.removeprefix("_signal."), [*ran])) if name is not None else None


def seeds_asked(methods: Set[str], ran: Iterable[CodeType]) -> Asking | None:
    """How the run asked a generator of torch's for its seed, and where, if that is known; None if it asked none."""
    return ("initial_seed", _place_of("initial_seed", [*ran])) if "Generator.initial_seed" in methods else None


def caches_emptied(methods: Set[str], ran: Iterable[CodeType]) -> Asking | None:
    """How the run emptied the cache of a function, and where, if that is known; None if it emptied none."""
    return _asked_of_cache("cache_clear", methods, ran)


def caches_counted(methods: Set[str], ran: Iterable[CodeType]) -> Asking | None:
    """How the run asked the cache of a function what it holds, and where, if that is known; None if it asked none."""
    return _asked_of_cache("cache_info", methods, ran)


def _asked_of_cache(name: str, methods: Set[str], ran: Iterable[CodeType]) -> Asking | None:
    return (name, _place_of(name, [*ran])) if f"_lru_cache_wrapper.{name}" in methods else None


def _asked(builtins: Mapping[str, Sequence[CodeType]], names: Iterable[str]) -> Asking | None:
    for name in sorted(builtins.keys() & names):
        callers = [code for code in builtins[name] if code.co_filename != logging.__file__]  # the time of a message
        if callers:
            return name, _place_of(name.rpartition(".")[2], callers)
    return None


def _place_of(function: str, callers: Sequence[CodeType]) -> Location | None:
    """Where a function is called: the first line of the user's that has its name, or of anybody's; else the first of those who
    may have called it."""
    ordered = sorted(callers, key=lambda code: not is_users_or_text(code.co_filename))
    first = (Location(code.co_filename, code.co_firstlineno, code.co_name) for code in ordered)
    return next(mentions((code for code in ordered if function in code.co_names), {function}), next(first, None))


def settings_asked(builtins: dict[str, list[CodeType]]) -> Iterator[Asked]:
    """Guards over the settings that the run asked for."""
    for name in builtins:
        module, _, function = name.rpartition(".")
        if module in ("torch", "torch._C") and function.startswith(_GETTERS) and function not in _KNOWN:
            yield from _of_torch(module, function)
        elif name in _ASKED_AGAIN and any(code.co_filename not in _ASK_FOR_THEMSELVES for code in builtins[name]):
            yield Asked(getattr(sys.modules[module], function), f"{name}()", is_fresh=True)
        elif name.endswith("decimal.getcontext"):
            yield Asked(lambda: repr(decimal.getcontext()), "decimal.getcontext()", is_fresh=True)
        elif module.startswith("numpy.") and function == "_get_extobj_dict":
            yield Asked(lambda: repr(sys.modules["numpy"].geterr()), "numpy.geterr()", is_fresh=True)


def _of_torch(module: str, function: str) -> Iterator[Asked]:
    if function == "get_autocast_dtype":
        for kind in ("cpu", "cuda"):
            yield Asked(functools.partial(torch.get_autocast_dtype, kind), f"torch.get_autocast_dtype({kind!r})")
        return
    ask: Callable[[], Any] | None = getattr(sys.modules[module], function, None)
    if ask is None:
        return
    try:
        answer = ask()
    except Exception:  # it takes arguments, so it is about what they are
        return
    if is_value(answer):
        yield Asked(ask, f"{module}.{function}()", is_fresh=ask() is not answer)  # some make one anew

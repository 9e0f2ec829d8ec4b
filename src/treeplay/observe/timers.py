"""How long named phases take: a timer for blocks and functions, what it kept, and three reports of that.

with phase("lower"): ...            @phase()
                                    def plan(graph): ...          # its key: the function's qualified name
"""

from __future__ import annotations

import atexit
import functools
import inspect
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Literal, ParamSpec, TypeVar, overload

from torch.autograd.profiler import record_function

from treeplay.errors import ArgumentError, ArgumentTypeError
from treeplay.locks import shared_lock
from treeplay.torch_seam.flags import is_profiling

_log = logging.getLogger("treeplay.timing")
_P = ParamSpec("_P")
_R = TypeVar("_R")

KEPT_DURATIONS = 4096
"""How many durations a key keeps, the newest; its total counts them all."""
KEPT_FAILURES = 64
"""How many failures of phases are kept, the newest."""


@dataclass(frozen=True, slots=True)
class PhaseFailure:
    """A phase that ended by an exception: the phase's key, the exception's type name and its text."""

    phase: str
    type_name: str
    text: str

    def __str__(self) -> str:
        return f"{self.phase}: {self.type_name}: {self.text}"


class _Durations:
    """What one key kept: its newest durations and the sum of all, in seconds."""

    __slots__ = ("newest", "total")

    def __init__(self) -> None:
        self.newest: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self.total = 0.0


class Timers:
    """Durations by phase, in seconds, in the order in which the phases first ended. Safe under threads."""

    def __init__(self) -> None:
        self._phases: dict[str, _Durations] = {}
        self._failures: deque[PhaseFailure] = deque(maxlen=KEPT_FAILURES)
        self._lock = shared_lock()

    def add(self, key: str, seconds: float) -> None:
        """Append one duration of `seconds` to `key`."""
        durations = self._phases.get(key) or self._phases.setdefault(key, _Durations())
        with self._lock:
            durations.newest.append(seconds)
            durations.total += seconds  # after the call: a finalizer that times something may run at a call

    def add_failure(self, key: str, error: BaseException) -> None:
        """Keep that the phase `key` failed with `error`; the error itself is not held."""
        self._failures.append(PhaseFailure(key, type(error).__name__, _text_of(error)))

    def snapshot(self) -> dict[str, list[float]]:
        """The kept durations of every phase, in seconds, as lists of their own."""
        with self._lock:
            return {key: list(kept.newest) for key, kept in list(self._phases.items())}

    def totals(self) -> dict[str, float]:
        """The sum of all durations of every phase, in seconds."""
        with self._lock:
            return {key: kept.total for key, kept in list(self._phases.items())}

    def failures(self) -> list[PhaseFailure]:
        """The newest failures of phases, oldest first, as a list of its own."""
        return list(self._failures)

    def clear(self) -> None:
        """Forget all durations and failures."""
        with self._lock:
            self._phases.clear()
            self._failures.clear()

    @overload
    def report(self, form: Literal["text", "total"] = ..., *, aggregate: bool = ...) -> str: ...
    @overload
    def report(self, form: Literal["csv"], *, aggregate: bool = ...) -> tuple[list[str], list[str]]: ...
    @overload
    def report(self, form: str, *, aggregate: bool = ...) -> str | tuple[list[str], list[str]]: ...

    def report(self, form: str = "text", *, aggregate: bool = False) -> str | tuple[list[str], list[str]]:
        """The durations in one of three forms; with `aggregate`, each phase's sum in place of its durations.

        "text": a table, a line per phase, seconds to 4 decimals. "csv": the keys, and for each a string of
        seconds to 6 decimals. "total": one line, `TIMING: name:seconds ...`, sums rounded to 5 decimals.
        Raises `ArgumentError` for any other form.
        """
        if form == "text":
            return _table(self._columns(aggregate, decimals=4))
        if form == "csv":
            columns = self._columns(aggregate, decimals=6)
            return list(columns), list(columns.values())
        if form == "total":
            return " ".join(["TIMING:", *(f"{key}:{round(sum_, 5)}" for key, sum_ in self.totals().items())])
        raise ArgumentError(f'a time report is "text", "csv" or "total", got {form!r}')

    def _columns(self, aggregate: bool, *, decimals: int) -> dict[str, str]:
        if aggregate:
            return {key: f"{total:.{decimals}f}" for key, total in self.totals().items()}
        return {key: ", ".join(f"{s:.{decimals}f}" for s in kept) for key, kept in self.snapshot().items()}


timers = Timers()
"""The durations of this process."""


class PhaseTimer:
    """A timer of one key: enter it to time a block, or put it on a function to time every call.

    One object times one block at a time in one thread (blocks may nest); as a decorator it has no such limit.
    A block that raises adds no time: the exception goes on unchanged, and a `PhaseFailure` is kept.
    Under the torch profiler the block is an event of the key's name.
    """

    __slots__ = ("_event", "_key", "_outer", "_start")

    def __init__(self, key: str | None) -> None:
        self._key = key
        self._start = 0.0
        self._event: record_function | None = None
        self._outer: list[tuple[float, record_function | None]] | None = None

    def __enter__(self) -> None:
        if self._key is None:
            raise ArgumentError('a block has no name of its own to time it by: write phase("name")')
        if self._start:
            self._outer = [*(self._outer or ()), (self._start, self._event)]
        self._event = _event(self._key) if is_profiling() else None
        self._start = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = perf_counter() - self._start
        key = self._key or ""
        if self._event is not None:
            self._event.__exit__(kind, error, trace)
        self._start, self._event = self._outer.pop() if self._outer else (0.0, None)
        if error is None:
            timers.add(key, seconds)
        else:
            timers.add_failure(key, error)

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """`function`, timed on every call.

        Raises `ArgumentTypeError` for a generator or coroutine function: its call is over before its work.
        """
        key = self._key or function.__qualname__
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            raise ArgumentTypeError(f"{key} returns before its work is done: time a block inside it")

        @functools.wraps(function)
        def timed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with PhaseTimer(key):
                return function(*args, **kwargs)

        return timed


def phase(name: str | None = None) -> PhaseTimer:
    """A timer of the phase `name`, to enter as a context or to put on a function.

    On a function the name may be left out; the phase is then called by the function's qualified name.
    Raises `ArgumentTypeError` if `name` is no string (also for `@phase` without its parentheses).
    """
    if name is not None and not isinstance(name, str):
        hint = " (write @phase() with parentheses)" if callable(name) else ""
        raise ArgumentTypeError(f"a phase is named by a string, got {type(name).__name__}{hint}")
    return PhaseTimer(name)


report = timers.report


def _event(key: str) -> record_function:
    event = record_function(key)
    event.__enter__()
    return event


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # the exception under way matters more than one that cannot describe itself
        return f"<no text: {type(broken).__name__}>"


def _table(columns: dict[str, str]) -> str:
    width = max(map(len, ["phase", *columns]))
    lines = [("phase", "seconds"), *columns.items()]
    return "\n".join(f"{key:<{width}}  {text}" for key, text in lines)


def _log_summary() -> None:
    if _log.isEnabledFor(logging.INFO):
        _log.info("time by phase, summed\n%s", timers.report("text", aggregate=True))


# Logging closes its handlers in an exit hook too; registered before ours, it runs after ours.
atexit.register(_log_summary)

"""Options of one compile: typed, checked by name, and in force for everything that the compile does, also later.

with overriding({"inner": "aten"}) as chosen: ...     # here current() is `chosen`; the innermost block wins
with using(chosen): ...                               # the backward, compiled later, is compiled under the same
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any

from treeplay.errors import ArgumentError, ArgumentTypeError
from treeplay.wrap.aot.compilers import AliasCheck

INNERS = ("aten", "inductor")
MODES = ("default", "reduce-overhead")
ALIAS_CHECKS = ("warn", "raise", "off")


@dataclass(frozen=True, slots=True)
class Options:
    """What can be set for one compile, with its default."""

    inner: str | Callable[..., Any] = "inductor"
    """What generates code for a flat graph: "inductor" (fused kernels), "aten" (the operators as they are) or a callable
    `inner(module, inputs)` that returns a callable which takes one list."""

    before_autograd: tuple[Callable[..., Any], ...] = ()
    """Passes `rewrite(module, inputs)` on the traced graph; each may return a new graph. Child graphs come without inputs."""

    joint: tuple[Callable[..., Any], ...] = ()
    """Passes `rewrite(module)` on forward and backward together, before they are split; for inference on the forward."""

    after_autograd: tuple[Callable[..., Any], ...] = ()
    """Passes `rewrite(module, is_inference)` on each final forward or backward."""

    partition: Callable[..., Any] | None = None
    """Splits the joint graph into forward and backward, instead of torch's min-cut split."""

    decompositions: Mapping[Any, Callable[..., Any]] | None = None
    """Operators to take apart, instead of the table of the inner compiler."""

    eager_random: bool = False
    """Compiled kernels draw the very random numbers that eager would, at some cost in speed."""

    keep_strides: bool = True
    """Results that a user sees have eager's strides. Otherwise the inner compiler lays them out as it likes."""

    keep_gradient_strides: bool = False
    """Gradients that leave a backward graph have eager's strides too."""

    record: bool = True
    """Compiled graphs may be recorded."""

    record_dynamic: bool = True
    """Graphs with sizes that change from call to call may be recorded, once for each set of sizes."""

    record_or_fail: bool = False
    """A graph that cannot be recorded is an error, on every path, instead of a line in the log."""

    most_sizes: int = 8
    """How many sets of sizes a graph is compiled for before a warning suggests to pad."""
    alias_check: AliasCheck = "warn"
    """What a first call does about a custom operator that returns memory which its schema says is new: "warn", "raise"
    or "off"."""


_DEFAULTS = Options()
_current: ContextVar[Options] = ContextVar("treeplay_options", default=_DEFAULTS)


def current() -> Options:
    """The options in force here."""
    return _current.get()


def effective(overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """All options as they are with `overrides` applied, as a dict of the caller's own."""
    chosen = overridden(current(), overrides)
    return {field.name: getattr(chosen, field.name) for field in fields(Options)}


def overridden(options: Options, overrides: Mapping[str, Any] | None) -> Options:
    """`options` with some replaced. Raises on an unknown name or a value of another type."""
    checked = {name: _checked(name, value) for name, value in (overrides or {}).items()}
    return replace(options, **checked)


def check_mode(mode: str | None) -> None:
    """Raise for a mode of `torch.compile` that would not be followed."""
    if mode is not None and mode not in MODES:
        raise ArgumentError(
            f"mode: backend 'treeplay' has {' and '.join(map(repr, MODES))}, which both record what can be recorded, found "
            f"{mode!r}. For kernels that Inductor tunes, set max_autotune in its configuration"
        )


@contextlib.contextmanager
def using(options: Options) -> Iterator[Options]:
    """While this lasts, `options` are in force in this thread."""
    token = _current.set(options)
    try:
        yield options
    finally:
        _current.reset(token)


@contextlib.contextmanager
def overriding(overrides: Mapping[str, Any] | None) -> Iterator[Options]:
    """While this lasts, the options in force are overridden by some."""
    with using(overridden(current(), overrides)) as chosen:
        yield chosen


def _checked(name: str, value: Any) -> Any:
    known = [field.name for field in fields(Options)]
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(known)}"
        raise ArgumentError(f"options[{name!r}]: no such option; {hint}")
    return _CHECKS[name](name, value)


def _inner(name: str, value: Any) -> Any:
    if callable(value):
        return value
    _expect(isinstance(value, str), name, f"one of {INNERS} or a callable", value)
    if value not in INNERS:
        raise ArgumentError(f"options[{name!r}]: expected one of {INNERS} or a callable, found {value!r}")
    return value


def _passes(name: str, value: Any) -> tuple[Callable[..., Any], ...]:
    is_sequence = isinstance(value, (list, tuple)) and all(map(callable, value))
    _expect(is_sequence, name, "a list or tuple of callables", value)
    return tuple(value)


def _partition(name: str, value: Any) -> Any:
    _expect(value is None or callable(value), name, "a callable or None", value)
    return value


def _decompositions(name: str, value: Any) -> Any:
    _expect(value is None or isinstance(value, Mapping), name, "a mapping of operators to callables, or None", value)
    return value


def _alias_check(name: str, value: Any) -> Any:
    _expect(isinstance(value, str), name, f"one of {ALIAS_CHECKS}", value)
    if value not in ALIAS_CHECKS:
        raise ArgumentError(f"options[{name!r}]: expected one of {ALIAS_CHECKS}, found {value!r}")
    return value


def _bool(name: str, value: Any) -> Any:
    _expect(type(value) is bool, name, "bool", value)
    return value


def _count(name: str, value: Any) -> Any:
    _expect(type(value) is int, name, "int", value)
    if value < 1:
        raise ArgumentError(f"options[{name!r}]: expected at least 1, found {value}")
    return value


def _expect(is_right: bool, name: str, expected: str, value: Any) -> None:
    if not is_right:
        raise ArgumentTypeError(f"options[{name!r}]: expected {expected}, found {type(value).__name__}")


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "inner": _inner,
    "before_autograd": _passes,
    "joint": _passes,
    "after_autograd": _passes,
    "partition": _partition,
    "decompositions": _decompositions,
    "eager_random": _bool,
    "keep_strides": _bool,
    "keep_gradient_strides": _bool,
    "record": _bool,
    "record_dynamic": _bool,
    "record_or_fail": _bool,
    "most_sizes": _count,
    "alias_check": _alias_check,
}

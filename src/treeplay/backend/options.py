"""Options of one compile: one frozen value, typed and checked by name, that each stage is given, also those that run later."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
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

    @property
    def draws_as_eager(self) -> bool:
        """Whether every random number is the one that eager would draw."""
        return self.inner == "aten" or self.eager_random


def options_from(given: Mapping[str, Any] | None) -> Options:
    """The options that somebody chose, the others by default. Raises on an unknown name or a value of another type."""
    return Options(**{name: _checked(name, value) for name, value in (given or {}).items()})


def check_mode(mode: str | None) -> None:
    """Raise for a mode of `torch.compile` that would not be followed."""
    if mode is not None and mode not in MODES:
        raise ArgumentError(
            f"mode: backend 'treeplay' has {' and '.join(map(repr, MODES))}, which both record what can be recorded, found "
            f"{mode!r}. For kernels that Inductor tunes, set max_autotune in its configuration"
        )


def _checked(name: str, value: Any) -> Any:
    defaults = {field.name: field.default for field in fields(Options)}
    if name not in defaults:
        near = difflib.get_close_matches(str(name), defaults, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"there are {', '.join(defaults)}"
        raise ArgumentError(f"options[{name!r}]: no such option; {hint}")
    expected, is_right = _SPECIAL.get(name) or _BY_DEFAULT[type(defaults[name])]
    if not is_right(value):
        raise ArgumentTypeError(f"options[{name!r}]: expected {expected}, found {type(value).__name__}")
    if isinstance(value, str) and value not in (choices := _CHOICES[name]):
        raise ArgumentError(f"options[{name!r}]: expected one of {choices}, found {value!r}")
    if type(value) is int and value < 1:
        raise ArgumentError(f"options[{name!r}]: expected at least 1, found {value}")
    return tuple(value) if isinstance(value, list) else value


_CHOICES = {"inner": INNERS, "alias_check": ALIAS_CHECKS}
_ValueCheck = tuple[str, Callable[[Any], bool]]
_BY_DEFAULT: dict[type, _ValueCheck] = {
    bool: ("bool", lambda value: type(value) is bool),
    int: ("int", lambda value: type(value) is int),
    tuple: (
        "a list or tuple of callables",
        lambda value: isinstance(value, (list, tuple)) and all(map(callable, value)),
    ),
}
_SPECIAL: dict[str, _ValueCheck] = {
    "inner": (f"one of {INNERS} or a callable", lambda value: isinstance(value, str) or callable(value)),
    "partition": ("a callable or None", lambda value: value is None or callable(value)),
    "decompositions": (
        "a mapping of operators to callables, or None",
        lambda it: it is None or isinstance(it, Mapping),
    ),
    "alias_check": (f"one of {ALIAS_CHECKS}", lambda value: isinstance(value, str)),
}
"""What an option may be, by its name or else by its default: in words, and asked of a value."""

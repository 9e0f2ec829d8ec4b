"""What a wrapped function's arguments are called in generated code: as the user calls them, where that is possible."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Sequence
from typing import Any

_TAKEN = frozenset(
    (
        *("args", "values", "mode", "replay", "ctx", "run", "grads", "strided", "missing", "call", "forward"),
        *("backward", "plain", "names", "transformed", "generators", "Tensor"),
        *("given", "TreeplayError", "PatternChanged"),
    )
)


def names_of(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The user's argument names, where they are known and can stand in generated code."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return usable_names((), count)
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    return usable_names(names if len(names) == len(parameters) else (), count)


def usable_names(names: Sequence[str], count: int) -> tuple[str, ...]:
    """`names` if all can stand in generated code, beside its own; else numbered ones."""
    # Generated variables end in a number or have a `_`: `value0`, `grad0_a`.
    is_usable = len(set(names)) == len(names) == count and not any(
        not name.isidentifier() or keyword.iskeyword(name) or name in _TAKEN or name[-1].isdigit() or "_" in name
        for name in names
    )
    return tuple(names) if is_usable else tuple(f"arg{k}" for k in range(count))

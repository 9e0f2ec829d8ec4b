"""What messages call the arguments of a function that is wrapped."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def names_of(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The function's own names of its arguments, where each has one; else numbered ones."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
    return names if len(names) == len(parameters) == count else tuple(f"arg{k}" for k in range(count))

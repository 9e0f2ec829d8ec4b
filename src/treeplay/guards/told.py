"""What is told of guards: how many of each kind there are, and which plain values they hold on to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from treeplay.guards.conditions import Guard
from treeplay.guards.dependencies import Dependencies
from treeplay.observe.shown import shown
from treeplay.values.kinds import PLAIN, is_a


def summary_of_guards(of: Dependencies) -> str:
    """How many there are of each kind."""
    counts = {
        "dictionaries": len(of.tables),
        "lists and sets": len(of.items) + len(of.members),
        "classes of objects": len(of.kinds),
        "functions": len(of.functions),
        "variables": len(of.asked),
        "arrays": len(of.data),
        "tensors": len(of.tensors),
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def plain_values(of: Dependencies) -> tuple[str, ...]:
    """The plain values among what is guarded, each as its place and what it was; not those of Python's own modules."""
    lines = {}
    for place, value in guarded_values(of):
        if is_a(value, PLAIN) and not _is_within_python(place):
            lines[place] = f"{place} = {shown(value)}"
    return tuple(lines.values())


def guarded_values(of: Dependencies) -> Iterator[tuple[str, Any]]:
    """Each guarded value by its place."""
    every: tuple[Guard, ...] = (*of.tables, *of.items, *of.members, *of.asked, *of.functions, *of.data)
    for guard in every:
        yield from guard.places()


def _is_within_python(place: str) -> bool:
    return "__" in place.removeprefix("__main__.") or place.startswith(("builtins.", "sys.modules."))

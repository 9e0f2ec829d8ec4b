"""Functions of ours that stand in for others while a program is traced: what another thread then finds in their place."""

from __future__ import annotations

from types import FunctionType
from typing import Any, TypeVar

F = TypeVar("F", bound=FunctionType)


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


ABSENT: Any = _Absent()
"""Stands for an entry that is not there."""


def stand_in(function: Any, original: Any = ABSENT) -> None:
    """Mark `function` as ours, in the place of `original` for a while."""
    function.is_treeplays = True
    function.stands_for = original


def without_stand_in(value: Any) -> Any:
    """A value as it is while nothing is traced: what a function of ours stands for, `ABSENT` for nothing, else itself."""
    function = value.__func__ if type(value) is classmethod else value
    if type(function) is FunctionType and hasattr(function, "is_treeplays"):
        return getattr(function, "stands_for", ABSENT)
    return value

"""Operators over lists of tensors, which may be one memory: what they do, one tensor after the other.

    _foreach_add_([a, a[1:]], [b, c])   ─▶   _foreach_add_([a], [b]), _foreach_add_([a[1:]], [c])

In eager mode each tensor is written before the next is read. A functional graph reads all of them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any


def one_by_one(args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of a call over lists, for each of their positions alone. Lists of another length are for all of them."""
    count = len([*args, *kwargs.values()][0])

    def at(index: int) -> Callable[[Any], Any]:
        return lambda value: [value[index]] if isinstance(value, (list, tuple)) and len(value) == count else value

    for index in range(count):
        one = at(index)
        yield tuple(map(one, args)), {name: one(value) for name, value in kwargs.items()}


def writes_shared(args: Sequence[Any], are_shared: Callable[[Any, Any], bool]) -> bool:
    """Whether a tensor that is written, one of the first list, lies in one memory with what is read at another position."""
    lists = [value for value in args if isinstance(value, (list, tuple)) and len(value) == len(args[0])]
    return any(
        here != there and are_shared(written, other)
        for here, written in enumerate(args[0])
        for items in lists
        for there, other in enumerate(items)
    )

"""Copies of what containers hold, whatever a subclass has made of its methods."""

from __future__ import annotations

import collections
from types import MappingProxyType
from typing import Any

from treeplay.trace.survey.found import Container
from treeplay.values.kinds import builtin_of, is_a


def bare(container: Any) -> Container:
    """A copy as a plain dict, OrderedDict, list, set or deque."""
    if is_a(container, MappingProxyType):  # a class's attributes, seen through the class
        return dict(container)
    if is_a(container, collections.deque):
        return collections.deque(collections.deque.__iter__(container), container.maxlen)
    base = builtin_of(container)
    copy: Container = base(dict_items(container) if is_a(container, dict) else base.__iter__(container))
    return copy


def dict_items(table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values in order."""
    return list(builtin_of(table).items(table))


def fill(container: Any, content: Any) -> None:
    """Make a container hold `content`, a copy that was made of it earlier; what can only be read is left."""
    if is_a(container, MappingProxyType):
        return
    base = builtin_of(container)
    base.clear(container)
    (base.update if is_a(container, (dict, set)) else base.extend)(container, content)

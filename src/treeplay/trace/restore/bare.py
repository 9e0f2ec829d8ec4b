"""What a container holds, whatever a subclass has made of its methods.

A registry may take other arguments in `get`, a mapping may import packages in `items`, a result may refuse `update`. A survey
and a snapshot want what is in the memory of the dict, list, set or deque below, so they ask the base class.
"""

from __future__ import annotations

import collections
from types import MappingProxyType
from typing import Any

from treeplay.trace.survey.found import Container


def bare(container: Container) -> Container:
    """A copy as a plain dict, OrderedDict, list, set or deque."""
    if isinstance(container, dict):
        return _dict_of(container)(entries(container))
    if isinstance(container, list):
        return list(list.__iter__(container))
    if isinstance(container, set):
        return set(set.__iter__(container))
    if isinstance(container, MappingProxyType):  # a class's attributes, seen through the class
        return dict(container)
    return collections.deque(collections.deque.__iter__(container), container.maxlen)


def entries(table: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values in order."""
    return list(_dict_of(table).items(table))


def fill(container: Container, content: Any) -> None:
    """Make a container hold `content`, a copy that `bare` made of it earlier; what can only be read is left."""
    if isinstance(container, MappingProxyType):
        return
    if isinstance(container, dict):
        _dict_of(container).clear(container)
        _dict_of(container).update(container, content)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, content)
    else:
        base: Any = list if isinstance(container, list) else collections.deque
        base.clear(container)
        base.extend(container, content)


def _dict_of(table: dict[Any, Any]) -> type[dict[Any, Any]]:
    return collections.OrderedDict if isinstance(table, collections.OrderedDict) else dict

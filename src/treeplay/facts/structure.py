"""Nested containers taken apart and put together: dict, OrderedDict, list, tuple, namedtuple and dataclass.

{"a": t, "b": (t2, 3)}  ->  leaves [t, t2, 3] and Structure(dict, ("a", "b"), (leaf 0, Structure(tuple, ...)))
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

DICTS = (dict, OrderedDict)


@dataclass(frozen=True, slots=True)
class Leaf:
    """The position of a leaf in the list of leaves."""

    index: int


@dataclass(frozen=True, slots=True)
class Structure:
    """A container: its class, its keys (dict keys or field names; empty for sequences) and its parts in order."""

    cls: type
    keys: tuple[Any, ...]
    parts: tuple[Leaf | Structure, ...]

    @property
    def is_named(self) -> bool:
        """Whether parts are fields of a dataclass."""
        return dataclasses.is_dataclass(self.cls)


def is_namedtuple(cls: type) -> bool:
    """Whether `cls` is a namedtuple class."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_named_result(cls: type) -> bool:
    """Whether `cls` is the class of one of torch's own named results, such as that of `x.max(0)`."""
    return issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields") and cls.__module__ == "torch.return_types"


def is_dataclass_value(value: Any) -> bool:
    """Whether `value` is a dataclass instance with its fields and nothing else, all of them taken by its constructor."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    fields = dataclasses.fields(value)
    has_more = not getattr(value, "__dict__", {}).keys() <= {field.name for field in fields}
    return not has_more and all(field.init for field in fields)


def flatten(value: Any) -> tuple[list[Any], Leaf | Structure]:
    """Take `value` apart: its leaves in order, and the structure that puts them together again."""
    leaves: list[Any] = []
    return leaves, _take_apart(value, leaves)


def _take_apart(value: Any, leaves: list[Any]) -> Leaf | Structure:
    cls = type(value)
    if is_dataclass_value(value):
        names = tuple(field.name for field in dataclasses.fields(value))
        return Structure(cls, names, tuple(_take_apart(getattr(value, name), leaves) for name in names))
    if cls in DICTS:
        return Structure(cls, tuple(value), tuple(_take_apart(part, leaves) for part in value.values()))
    if cls in (list, tuple) or is_namedtuple(cls) or is_named_result(cls):
        return Structure(cls, (), tuple(_take_apart(part, leaves) for part in value))
    leaves.append(value)
    return Leaf(len(leaves) - 1)


def unflatten(structure: Leaf | Structure, leaves: list[Any]) -> Any:
    """Put leaves together again."""
    if isinstance(structure, Leaf):
        return leaves[structure.index]
    parts = [unflatten(part, leaves) for part in structure.parts]
    if structure.is_named:
        return structure.cls(**dict(zip(structure.keys, parts, strict=True)))
    if structure.cls in DICTS:
        return structure.cls(zip(structure.keys, parts, strict=True))
    return structure.cls(*parts) if is_namedtuple(structure.cls) else structure.cls(parts)


def classes_in(structure: Leaf | Structure) -> set[type]:
    """The classes of the containers in `structure`."""
    if isinstance(structure, Leaf):
        return set()
    return {structure.cls}.union(*(classes_in(part) for part in structure.parts))


def paths(structure: Leaf | Structure, start: str = "$") -> list[str]:
    """A readable path of each leaf, as `$.batch[1]`."""
    if isinstance(structure, Leaf):
        return [start]
    found: list[str] = []
    for index, part in enumerate(structure.parts):
        if structure.is_named:
            step = f".{structure.keys[index]}"
        else:
            step = f"[{structure.keys[index]!r}]" if structure.keys else f"[{index}]"
        found += paths(part, start + step)
    return found

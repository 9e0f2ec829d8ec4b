"""Nested containers taken apart and put together: dict, OrderedDict, list, tuple, namedtuple and dataclass.

{"a": t, "b": (t2, 3)}  ->  leaves [t, t2, 3] and Structure(dict, ("a", "b"), (leaf 0, Structure(tuple, ...)))
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

DICTS = (dict, OrderedDict)
_PLAIN = frozenset({*DICTS, list, tuple})
_DEEPEST = 100
_HEAP = 1 << 9  # of classes that Python code made


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
    cls = type(value)
    if not hasattr(cls, "__dataclass_fields__"):
        return False
    fields = dataclasses.fields(cls)
    has_more = not getattr(value, "__dict__", {}).keys() <= {field.name for field in fields}
    return not has_more and all(field.init and hasattr(value, field.name) for field in fields)


LeafTest = Callable[[Any], bool]


def flatten(value: Any, is_leaf: LeafTest | None = None) -> tuple[list[Any], Leaf | Structure]:
    """Take `value` apart: its leaves in order, and the structure that puts them together again.

    A container that contains itself is a leaf where it comes again, and so is one deeper than any program means. Containers
    inside of `value` for which `is_leaf` says so are not taken apart either.
    """
    leaves: list[Any] = []
    return leaves, _take_apart(value, leaves, is_leaf, ())


def _take_apart(value: Any, leaves: list[Any], is_leaf: LeafTest | None, above: tuple[int, ...]) -> Leaf | Structure:
    opened = None if above and is_leaf is not None and is_leaf(value) else _open(value, above)
    if opened is None:
        leaves.append(value)
        return Leaf(len(leaves) - 1)
    above = (*above, id(value))
    keys, parts = opened
    return Structure(type(value), keys, tuple(_take_apart(part, leaves, is_leaf, above) for part in parts))


def _open(value: Any, above: tuple[int, ...] = ()) -> tuple[tuple[Any, ...], Iterable[Any]] | None:
    """The keys and the parts of a container; None for whatever is a leaf, inside of containers with these `id`s."""
    cls = type(value)
    if cls not in _PLAIN and not hasattr(cls, "__dataclass_fields__") and not issubclass(cls, tuple):
        return None
    if id(value) in above or len(above) > _DEEPEST:
        return None
    if is_dataclass_value(value):
        names = tuple(field.name for field in dataclasses.fields(cls))
        return names, [getattr(value, name) for name in names]
    if cls in DICTS:
        return tuple(value), value.values()
    if cls in _PLAIN or is_named_result(cls) or (is_namedtuple(cls) and not getattr(value, "__dict__", None)):
        return (), tuple.__iter__(value) if issubclass(cls, tuple) else value
    return None


def containers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The containers among the arguments of a call, each by the name of the variable that a call function has it in."""
    for start, values in (("args", args), ("kwargs", tuple(kwargs.values()))):
        for index, value in enumerate(values):
            yield from _containers(f"{start}_{index}", value, ())


def _containers(name: str, value: Any, above: tuple[int, ...]) -> Iterator[tuple[str, Any]]:
    opened = _open(value, above)
    if opened is not None:
        yield name, value
        for index, part in enumerate(opened[1]):
            yield from _containers(f"{name}_{index}", part, (*above, id(value)))


def unflatten(structure: Leaf | Structure, leaves: list[Any]) -> Any:
    """Put leaves together again, as they are: what a constructor would do besides, it has done when they were taken apart."""
    if isinstance(structure, Leaf):
        return leaves[structure.index]
    parts = [unflatten(part, leaves) for part in structure.parts]
    if structure.is_named:
        if takes_fields_only(structure.cls):
            return structure.cls(**dict(zip(structure.keys, parts, strict=True)))
        return with_fields(structure.cls, structure.keys, parts)
    if structure.cls in DICTS:
        return structure.cls(zip(structure.keys, parts, strict=True))
    return tuple.__new__(structure.cls, parts) if is_namedtuple(structure.cls) else structure.cls(parts)


def takes_fields_only(cls: type) -> bool:
    """Whether the constructor of a dataclass puts its fields where they belong and does nothing else; or whether there is
    no other way to make one, since it is a builtin container too."""
    if not all(base is object or base.__flags__ & _HEAP for base in cls.__mro__):
        return True
    code = getattr(getattr(cls, "__init__", None), "__code__", None)
    is_generated = code is not None and code.co_filename == "<string>"
    hooked = [name for name in ("__new__", "__setattr__") if getattr(cls, name) is not getattr(object, name)]
    is_frozen = hooked == ["__setattr__"] and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return is_generated and (not hooked or is_frozen) and not hasattr(cls, "__post_init__")


def with_fields(cls: type, names: Iterable[str], values: Iterable[Any]) -> Any:
    """An instance of a dataclass that has these fields, without a call of its constructor."""
    made: Any = object.__new__(cls)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made


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

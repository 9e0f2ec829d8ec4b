"""Putting nested containers together again, from leaves and the `Structure` that `flatten` found.

Containers are made as they are, without their constructors: what those would do besides, they did before the value was taken
apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from treeplay.values.flatten import Given, container_base
from treeplay.values.kinds import HEAP
from treeplay.values.same import is_same
from treeplay.values.structure import DICTS, Leaf, Structure, is_namedtuple


def unflatten(
    structure: Leaf | Structure,
    leaves: list[Any],
    given: Given | None = None,
    themselves: Mapping[int, Any] | None = None,
) -> Any:
    """Put leaves together again, as they are: what a constructor would do besides, it has done when they were taken apart.

    With what was `given`, one container in several places is one again, and sets are those that were given, as long as nobody
    has changed them. `themselves`: containers that are not made anew, by the number of their first place."""
    twins, sets = (given.twins, given.sets) if given is not None else ((), ())
    return _unflatten(structure, leaves, iter(twins), iter(sets), dict(themselves or {}))


def _unflatten(
    structure: Leaf | Structure,
    leaves: list[Any],
    twins: Iterator[int],
    sets: Iterator[set[Any]],
    made: dict[int, Any],
) -> Any:
    if isinstance(structure, Leaf):
        return leaves[structure.index]
    number = next(twins, None)
    if structure.cls is set:
        own = next(sets, None)
        value = own if own is not None and is_same(tuple(own), structure.keys) else set(structure.keys)
    else:
        parts = [_unflatten(part, leaves, twins, sets, made) for part in structure.parts]
        value = _put_together(structure, parts)
    return value if number is None else made.setdefault(number, value)


def _put_together(structure: Structure, parts: list[Any]) -> Any:
    if structure.rest is not None:
        return object_of(structure.cls, structure.keys, structure.rest, parts)
    if structure.is_named:
        if takes_fields_only(structure.cls):
            return structure.cls(**dict(zip(structure.keys, parts, strict=True)))
        return with_fields(structure.cls, structure.keys, parts)
    if structure.cls in DICTS:
        return structure.cls(zip(structure.keys, parts, strict=True))
    if structure.cls is deque:
        return deque(parts, structure.most)
    return tuple.__new__(structure.cls, parts) if is_namedtuple(structure.cls) else structure.cls(parts)


def object_of(cls: type, keys: tuple[Any, ...], rest: tuple[str, ...], parts: Sequence[Any]) -> Any:
    """An object that has these items and attributes, without a call of its constructor."""
    base = container_base(cls)
    items, attributes = parts[: len(parts) - len(rest)], parts[len(parts) - len(rest) :]
    made: Any = base.__new__(cls, items) if base is tuple else base.__new__(cls)
    if issubclass(base, dict):
        base.update(made, zip(keys, items, strict=True))
    elif base is list:
        base.extend(made, items)
    for name, value in zip(rest, attributes, strict=True):
        if name == "__dict__":
            object.__getattribute__(made, name).update(value)
        else:
            object.__setattr__(made, name, value)
    return made


def takes_fields_only(cls: type) -> bool:
    """Whether the constructor of a dataclass puts its fields where they belong and does nothing else; or whether there is
    no other way to make one, since it is a builtin container too."""
    if not all(base is object or base.__flags__ & HEAP for base in cls.__mro__):
        return True
    code = getattr(getattr(cls, "__init__", None), "__code__", None)
    # `dataclasses` compiles the constructors that it writes from strings.
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

"""Taking nested containers apart: leaves in order, and the `Structure` that puts them together again.

{"a": t, "b": (t2, 3)}  ->  leaves [t, t2, 3] and Structure(dict, ("a", "b"), (leaf 0, Structure(tuple, ...)))
Batch(x=t)              ->  leaves [t]        and Structure(Batch, (), (Structure(dict, ("x",), (leaf 0,)),), ("__dict__",))

An object is opened only if it is its attributes, and the items of a builtin container, and nothing more (`may_open`): then it
can be put together from them. What is in a value of a known structure is listed here too, as it is by the same rules.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.values.kinds import HEAP, is_hidden, module_of, slots_in
from treeplay.values.structure import (
    DICTS,
    Leaf,
    Structure,
    indices_in,
    is_dataclass_value,
    is_named_result,
    is_namedtuple,
)

LeafTest = Callable[[Any], bool]
_TakenApart = tuple[tuple[Any, ...], Iterable[Any], tuple[str, ...] | None]
_BASES: tuple[Any, ...] = (OrderedDict, defaultdict, dict, list, tuple, types.SimpleNamespace)  # objects may be such
_PLAIN = frozenset({*DICTS, list, tuple, deque})
_DEEPEST = 100
_MOST_SEARCHED = 1000  # objects
_MOST_OPENED = 100
_SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NO_BATCHES = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, type, enum.Enum, *_SYMBOLS)


_CONSTANTS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, enum.Enum)


def _is_constant(item: Any) -> bool:
    if type(item) in (tuple, frozenset):
        return all(map(_is_constant, item))
    # NumPy's float64 and complex128 are subclasses of Python's numbers.
    return isinstance(item, _CONSTANTS) and module_of(type(item)) != "numpy"


def flatten(
    value: Any, is_leaf: LeafTest | None = None, opens: LeafTest | None = None, *, opens_sets: bool = False
) -> tuple[list[Any], Leaf | Structure]:
    """Take `value` apart: its leaves in order, and the structure that puts them together again.

    A container that contains itself is a leaf where it comes again, and so is one deeper than any program means. Containers
    inside of `value` for which `is_leaf` says so are not taken apart either. Objects are, for which `opens` says so, and
    those inside of them that hold tensors. A set is a leaf, unless `opens_sets` and it is one of constants, in no object.
    """
    leaves: list[Any] = []
    return leaves, _Flattening(leaves, is_leaf, opens, opens_sets).take_apart(value, ())


@dataclass(frozen=True, slots=True)
class _Flattening:
    leaves: list[Any]
    is_leaf: LeafTest | None
    opens: LeafTest | None
    opens_sets: bool
    opened: set[int] = field(default_factory=set)  # objects inside of others, each of which is opened once, by `id`

    def take_apart(self, value: Any, above: tuple[int, ...], *, is_inside: bool = False) -> Leaf | Structure:
        """`above`: the containers that `value` is in, by `id`. `is_inside` of an object."""
        if self.opens_sets and not is_inside and type(value) is set and all(map(_is_constant, value)):
            return Structure(set, tuple(value), ())
        is_closed = above and self.is_leaf is not None and self.is_leaf(value)
        opened = None if is_closed else self._open(value, above, is_inside=is_inside)
        if opened is None:
            self.leaves.append(value)
            return Leaf(len(self.leaves) - 1)
        above = (*above, id(value))
        keys, parts, rest = opened
        is_inside |= rest is not None
        taken = tuple(self.take_apart(part, above, is_inside=is_inside) for part in parts)
        return Structure(type(value), keys, taken, rest, value.maxlen if type(value) is deque else None)

    def _open(self, value: Any, above: tuple[int, ...], *, is_inside: bool) -> _TakenApart | None:
        """The keys, the parts and the attributes of a container; None for whatever is a leaf."""
        opened = _open(value, above)
        if (
            opened is not None
            or self.opens is None
            or not may_open(value)
            or id(value) in above
            or len(above) > _DEEPEST
        ):
            return opened
        if is_inside:
            if id(value) in self.opened or len(self.opened) >= _MOST_OPENED:
                return None  # what refers to its surroundings leads to each object on many ways
            self.opened.add(id(value))
            return _open_object(value) if self.opens(value) or holds_tensors(value) else None
        return _open_object(value) if self.opens(value) else None


def _open(value: Any, above: tuple[int, ...] = ()) -> _TakenApart | None:
    """The keys and the parts of a container that is no more than these; inside of containers with these `id`s."""
    cls = type(value)
    if cls not in _PLAIN and not hasattr(cls, "__dataclass_fields__") and not issubclass(cls, tuple):
        return None
    if id(value) in above or len(above) > _DEEPEST:
        return None
    if is_dataclass_value(value):
        names = tuple(field.name for field in dataclasses.fields(cls))
        return names, [getattr(value, name) for name in names], None
    if cls in DICTS:
        return tuple(value), value.values(), None
    if cls in _PLAIN or is_named_result(cls) or (is_namedtuple(cls) and not getattr(value, "__dict__", None)):
        # Not by an `__iter__` of a subclass's own.
        return (), tuple.__iter__(value) if issubclass(cls, tuple) else value, None
    return None


def may_open(value: Any) -> bool:
    """Whether `value` is an object which is its attributes, and the items of a builtin container if it is one, and no more."""
    cls = type(value)
    is_function = callable(value) and cls.__hash__ is not None  # else a batch that may be called, as those of PyG
    if issubclass(cls, _NO_BATCHES) or is_function or hasattr(cls, "__next__"):
        return False
    if any(not base.__flags__ & HEAP and base not in (object, typing.Generic, *_BASES) for base in cls.__mro__):
        return False
    tables = [vars(base)["__dict__"] for base in cls.__mro__ if base.__flags__ & HEAP and "__dict__" in vars(base)]
    is_made_here = bool(cls.__flags__ & HEAP) or cls in (defaultdict, types.SimpleNamespace)
    # A class may put a property in the place of `__dict__`: its attributes are then not known.
    return is_made_here and all(type(table) is types.GetSetDescriptorType for table in tables)


def container_base(cls: type) -> Any:
    """The builtin container that a class is made of, by whose methods its items are found; `object` if none."""
    return next((base for base in _BASES if issubclass(cls, base)), object)


def holds_tensors(value: Any) -> bool:
    """Whether there is a tensor in an object, or in the containers and objects that are in it."""
    waiting, seen = [value], {id(value): value}
    while waiting and len(seen) < _MOST_SEARCHED:
        found = waiting.pop()
        opened = _open(found) or (_open_object(found) if may_open(found) else None)
        for part in opened[1] if opened is not None else ():
            if isinstance(part, torch.Tensor):
                return True
            if id(part) not in seen:
                seen[id(part)] = part
                waiting.append(part)
    return False


def _open_object(value: Any) -> _TakenApart | None:
    cls = type(value)
    base = container_base(cls)
    keys = tuple(base.__iter__(value)) if issubclass(base, dict) else ()
    if issubclass(base, dict):
        parts = [base.__getitem__(value, key) for key in keys]
    else:
        parts = list(base.__iter__(value)) if base in (list, tuple) else []
    try:
        rest = _attributes_of(cls)
        return keys, [*parts, *(object.__getattribute__(value, name) for name in rest)], rest
    except AttributeError:  # a slot without a value, or one that a derived class hides
        return None


def _attributes_of(cls: type) -> tuple[str, ...]:
    slots = [(base, name) for base in cls.__mro__ for name in slots_in(base)]
    if any(is_hidden(cls, base, name) for base, name in slots):
        raise AttributeError
    table = ("__dict__",) if cls.__dictoffset__ else ()
    return (*table, *dict.fromkeys(name for _, name in slots))


def parts_in(structure: Structure, value: Any) -> list[Any]:
    """The parts of a value that has this structure."""
    opened = _open(value) if structure.rest is None else _open_object(value)
    return list(opened[1]) if opened is not None else []


def attributes_in(structure: Leaf | Structure, value: Any) -> Iterator[tuple[Any, str, set[int]]]:
    """The attributes of the objects in `value`: the object, the name, and the indices of the leaves below."""
    if isinstance(structure, Leaf):
        return
    parts = parts_in(structure, value)
    for part, inner in zip(structure.parts, parts, strict=False):
        yield from attributes_in(part, inner)
    for name, part in zip(structure.rest or (), structure.parts[len(structure.items) :], strict=True):
        if name == "__dict__" and isinstance(part, Structure):
            yield from ((value, key, indices_in(below)) for key, below in zip(part.keys, part.parts, strict=True))
        elif name != "default_factory":
            yield value, name, indices_in(part)


def containers(structure: Leaf | Structure, value: Any, name: str) -> Iterator[tuple[str, Any, Structure]]:
    """The containers in a value of this structure, each by the name of the variable that a call function has it in."""
    if isinstance(structure, Structure):
        yield name, value, structure
        for index, (part, inner) in enumerate(zip(structure.parts, parts_in(structure, value), strict=False)):
            yield from containers(part, inner, f"{name}_{index}")


def given_containers(structure: Leaf | Structure, args: Any, kwargs: Any) -> Iterator[tuple[str, Any, Structure]]:
    """The containers among the arguments of a call."""
    if isinstance(structure, Structure):
        for start, values, of in zip(("args", "kwargs"), (args, list(kwargs.values())), structure.parts, strict=True):
            for index, (value, part) in enumerate(zip(values, of.parts, strict=False)):  # type: ignore[union-attr]
                yield from containers(part, value, f"{start}_{index}")


@dataclass(frozen=True, slots=True)
class Given:
    """What a structure does not say of the containers in a value.

    twins   for each of them, the number of the first place that holds it: `(d, d)` gives (0, 1, 1)
    sets    the sets themselves: one that is made anew of its items may give them in another order
    """

    twins: tuple[int, ...]
    sets: tuple[set[Any], ...]

    @classmethod
    def of(cls, structure: Leaf | Structure, value: Any) -> Given:
        """The containers in a value of this structure."""
        found = list(containers(structure, value, ""))
        first: dict[int, int] = {}
        twins = tuple(first.setdefault(id(value), at) for at, (_, value, _) in enumerate(found))
        return cls(twins, tuple(value for _, value, part in found if part.cls is set))

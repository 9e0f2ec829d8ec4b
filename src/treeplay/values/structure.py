"""The structure of nested containers, apart from what is in them: dict, list, tuple, namedtuple, dataclass, and objects.

`flatten` takes a value apart into leaves and a `Structure`, `unflatten` puts it together again. Two values of one structure
have their leaves in the same order.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from treeplay.values.kinds import module_of

DICTS = (dict, OrderedDict)


@dataclass(frozen=True, slots=True)
class Leaf:
    """The position of a leaf in the list of leaves."""

    index: int


@dataclass(frozen=True, slots=True)
class Structure:
    """A container: its class, its keys (dict keys or field names; empty for sequences) and its parts in order.

    An object of any other class has the attributes `rest`, whose values are its last parts: its `__dict__` as a whole, and
    slots. The keys of a set are its items, in their order. `most`: how many items a deque may have.
    """

    cls: type
    keys: tuple[Any, ...]
    parts: tuple[Leaf | Structure, ...]
    rest: tuple[str, ...] | None = None
    most: int | None = None

    @property
    def is_named(self) -> bool:
        """Whether parts are fields of a dataclass."""
        return self.rest is None and dataclasses.is_dataclass(self.cls)

    @property
    def items(self) -> tuple[Leaf | Structure, ...]:
        """The parts that are no attributes of an object."""
        return self.parts[: len(self.parts) - len(self.rest or ())]

    @property
    def is_array(self) -> bool:
        """Whether it is a NumPy array, whose one part is a tensor over its memory."""
        return module_of(self.cls) == "numpy" and self.cls.__name__ == "ndarray"


def is_namedtuple(cls: type) -> bool:
    """Whether `cls` is a namedtuple class."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_named_result(cls: type) -> bool:
    """Whether `cls` is the class of one of torch's own named results, such as that of `x.max(0)`."""
    # An attribute that CPython gives its struct sequences, which these are.
    return issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields") and module_of(cls) == "torch.return_types"


def is_dataclass_value(value: Any) -> bool:
    """Whether `value` is a dataclass instance with its fields and nothing else, all of them taken by its constructor."""
    cls = type(value)
    if not hasattr(cls, "__dataclass_fields__"):
        return False
    fields = dataclasses.fields(cls)
    has_more = not getattr(value, "__dict__", {}).keys() <= {field.name for field in fields}
    return not has_more and all(field.init and hasattr(value, field.name) for field in fields)


def is_unhashable(value: Any) -> bool:
    """Whether `value` says of itself that it may change: no other object can be asked whether it is the same."""
    return type(value).__hash__ is None


def classes_in(structure: Leaf | Structure) -> set[type]:
    """The classes of the containers in `structure`."""
    if isinstance(structure, Leaf):
        return set()
    return {structure.cls}.union(*(classes_in(part) for part in structure.parts))


def keys_in(structure: Leaf | Structure) -> Iterator[Any]:
    """The keys of the dictionaries in `structure`, and the names of fields."""
    if isinstance(structure, Structure):
        yield from structure.keys
        for part in structure.parts:
            yield from keys_in(part)


def indices_in(structure: Leaf | Structure) -> set[int]:
    """The indices of the leaves in `structure`."""
    return {structure.index} if isinstance(structure, Leaf) else set().union(*map(indices_in, structure.parts))


def indices_in_objects(structure: Leaf | Structure) -> set[int]:
    """The indices of the leaves that are attributes of an object, or below."""
    if isinstance(structure, Leaf):
        return set()
    items = structure.items
    attributes = structure.parts[len(items) :]
    return set().union(*map(indices_in_objects, items), *map(indices_in, attributes))


def paths(structure: Leaf | Structure, start: str = "$") -> list[str]:
    """A readable path of each leaf, as `$.batch[1]`."""
    if isinstance(structure, Leaf):
        return [start]
    found: list[str] = []
    count = len(structure.items)
    for index, part in enumerate(structure.parts[:count]):
        if structure.is_named:
            step = f".{structure.keys[index]}"
        elif structure.is_array:
            step = ""
        else:
            step = f"[{structure.keys[index]!r}]" if structure.keys else f"[{index}]"
        found += paths(part, start + step)
    for name, part in zip(structure.rest or (), structure.parts[count:], strict=True):
        if name == "__dict__" and isinstance(part, Structure):
            for key, below in zip(part.keys, part.parts, strict=True):
                found += paths(below, f"{start}.{key}")
        else:
            found += paths(part, f"{start}.{name}")
    return found


def as_written(path: str) -> str:
    """A path as a user would write it: `$[0][1]` is the second positional argument, `$[1]['x']` the keyword x."""
    if path.startswith("$[0]"):
        return "args" + path[4:]
    return "kwargs" + path[4:] if path.startswith("$[1]") else path

"""Numbers among the arguments that differ from call to call: inputs of a recording, instead of a part of its key.

A float or an integer is part of the key at first, like any static argument. When a call differs from an earlier one by such
numbers alone, these become inputs, as an optimizer's learning rate is. Where a recording cannot have one as an input, because
the program needs its value while it runs (an index, a size, how often something is done) or keeps it, that number is part of
the key again, for good. Only numbers that are arguments themselves are meant, not those in containers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any, cast

from treeplay.trace.call import Call
from treeplay.tree.keys.key import Key
from treeplay.values.place import How
from treeplay.values.signature import Signature, may_be_input
from treeplay.values.structure import Leaf, Structure

_TYPES = (float, int)
Name = tuple[str, Hashable]  # ("args", 1), ("kwargs", "scale")


class VaryingNumbers:
    """Which numbers among one program's arguments are inputs."""

    def __init__(self) -> None:
        self._inputs: set[Name] = set()
        self._fixed: set[Name] = set()

    def marked(self, call: Call) -> Call:
        """The call, with the numbers that are to be inputs of a recording."""
        if not self._inputs:
            return call
        return replace(call, numbers=frozenset(at for name, at in _numbers(call) if name in self._inputs))

    def found(self, key: Key, call: Call, others: Iterable[Key]) -> bool:
        """Whether a new key differs from another one by such numbers alone; they are inputs from now on."""
        names = {at: name for name, at in _numbers(call) if name not in self._fixed and at not in call.numbers}
        if not names:
            return False
        for other in others:
            differing = _differing(key, other)
            if differing and differing <= names.keys():
                self._inputs.update(names[at] for at in differing)
                return True
        return False

    def fix(self, call: Call) -> None:
        """Have the numbers that are inputs in this call be part of the key, from now on."""
        names = {name for name, at in _numbers(call) if at in call.numbers}
        self._inputs -= names
        self._fixed |= names


def numbers_given(signature: Signature) -> frozenset[int]:
    """The leaves of the arguments that are inputs of a recording as numbers."""
    return frozenset(number.place.key for number in signature.numbers if number.place.how is How.ARGUMENT)


def _numbers(call: Call) -> Iterator[tuple[Name, int]]:
    if not isinstance(call.structure, Structure):
        return
    for where, container in zip(("args", "kwargs"), call.structure.parts, strict=True):
        if isinstance(container, Structure):
            keys = container.keys or range(len(container.parts))
            for key, part in zip(keys, container.parts, strict=True):
                if isinstance(part, Leaf) and may_be_input(call.leaves[part.index]):
                    yield (where, key), part.index


def _differing(key: Key, other: Key) -> set[int]:
    """The leaves in which two keys differ; none if they differ in more than that."""
    structure, leaves = _parts(key)
    others_structure, others_leaves = _parts(other)
    if structure != others_structure or key.ambience != other.ambience or len(leaves) != len(others_leaves):
        return set()
    differing = {at for at, (one, two) in enumerate(zip(leaves, others_leaves, strict=True)) if one != two}
    types = {(_type_of(leaves[at]), _type_of(others_leaves[at])) for at in differing}
    return differing if all(one is two and one in _TYPES for one, two in types) else set()


def _parts(key: Key) -> tuple[Hashable, tuple[Hashable, ...]]:
    structure, leaves = cast(tuple[Hashable, tuple[Hashable, ...]], key.arguments)
    return structure, leaves


def _type_of(part: Hashable) -> Any:
    # In the key of a float, the class is an `Itself`.
    return getattr(part[0], "value", part[0]) if type(part) is tuple and len(part) == 2 else None

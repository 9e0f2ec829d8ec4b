"""Floats among the arguments that differ from call to call: inputs of a recording, instead of a part of its key.

A float is part of the key at first, like any static argument. When a call differs from an earlier one by floats alone, these
become inputs, as an optimizer's learning rate is. Where a recording cannot have one as an input, because the program needs its
value while it runs or keeps it, that float is part of the key again, for good. Only floats that are arguments themselves are
meant, not those in containers, and no integers: these count things, choose branches and are indices.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import replace
from typing import cast

from treeplay.trace.call import Call
from treeplay.tree.key import Key
from treeplay.values.place import How
from treeplay.values.signature import Signature
from treeplay.values.structure import Leaf, Structure

Name = tuple[str, Hashable]  # ("args", 1), ("kwargs", "scale")


class VaryingNumbers:
    """Which floats among one program's arguments are inputs."""

    def __init__(self) -> None:
        self._inputs: set[Name] = set()
        self._fixed: set[Name] = set()

    def marked(self, call: Call) -> Call:
        """The call, with the floats that are to be inputs of a recording."""
        if not self._inputs:
            return call
        return replace(call, numbers=frozenset(at for name, at in _floats(call) if name in self._inputs))

    def found(self, key: Key, call: Call, others: Iterable[Key]) -> bool:
        """Whether a new key differs from another one by floats alone; they are inputs from now on."""
        names = {at: name for name, at in _floats(call) if name not in self._fixed and at not in call.numbers}
        if not names:
            return False
        for other in others:
            differing = _differing(key, other)
            if differing and differing <= names.keys():
                self._inputs.update(names[at] for at in differing)
                return True
        return False

    def fix(self, call: Call) -> None:
        """Have the floats that are inputs in this call be part of the key, from now on."""
        names = {name for name, at in _floats(call) if at in call.numbers}
        self._inputs -= names
        self._fixed |= names


def numbers_given(signature: Signature) -> frozenset[int]:
    """The leaves of the arguments that are inputs of a recording as numbers."""
    return frozenset(number.place.key for number in signature.numbers if number.place.how is How.ARGUMENT)


def _floats(call: Call) -> Iterator[tuple[Name, int]]:
    if not isinstance(call.structure, Structure):
        return
    for where, container in zip(("args", "kwargs"), call.structure.parts, strict=True):
        if isinstance(container, Structure):
            keys = container.keys or range(len(container.parts))
            for key, part in zip(keys, container.parts, strict=True):
                if isinstance(part, Leaf) and type(call.leaves[part.index]) is float:
                    yield (where, key), part.index


def _differing(key: Key, other: Key) -> set[int]:
    """The leaves in which two keys differ; none if they differ in more than that."""
    structure, leaves = _parts(key)
    others_structure, others_leaves = _parts(other)
    if structure != others_structure or key.ambience != other.ambience or len(leaves) != len(others_leaves):
        return set()
    differing = {at for at, (one, two) in enumerate(zip(leaves, others_leaves, strict=True)) if one != two}
    is_float = all(_is_float(leaves[at]) and _is_float(others_leaves[at]) for at in differing)
    return differing if is_float else set()


def _parts(key: Key) -> tuple[Hashable, tuple[Hashable, ...]]:
    structure, leaves = cast(tuple[Hashable, tuple[Hashable, ...]], key.arguments)
    return structure, leaves


def _is_float(part: Hashable) -> bool:
    return type(part) is tuple and len(part) == 2 and getattr(part[0], "value", part[0]) is float

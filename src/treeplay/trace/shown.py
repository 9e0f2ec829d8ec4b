"""What one run of a program showed, so that a later run can be compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treeplay.trace.found import PLAIN
from treeplay.trace.given import given_name
from treeplay.values.output import Static
from treeplay.values.place import How, Place
from treeplay.values.signature import Built, Ref, StateContainer, Write
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import Leaf, Structure


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What one run showed besides the content of its outputs; each run of a program shows the same."""

    results: Leaf | Structure
    refs: tuple[Ref, ...]
    writes: tuple[Write, ...]
    outputs: tuple[TensorSpec, ...]

    def is_like(self, other: RunFacts) -> bool:
        """Whether another run showed the same."""
        return self._comparable() == other._comparable()

    def _comparable(self) -> tuple[Any, ...]:
        refs = [_comparable(ref) for ref in self.refs]
        writes = [
            (key_of(write.place)[::2], given_name(write.place), _comparable(write.value)) for write in self.writes
        ]
        return self.results, refs, writes, self.outputs


def _comparable(value: Ref) -> Any:
    if isinstance(value, Built):
        return value.structure, [_comparable(ref) for ref in value.refs], value.number
    if isinstance(value, StateContainer):
        return key_of(value.place)
    if isinstance(value, Static) and not isinstance(value.value, PLAIN):
        return type(value.value), id(value.value)
    return value


def key_of(place: Place) -> tuple[How, int, Any]:
    """What identifies a place among those of one run."""
    return place.how, id(place.holder), place.key if isinstance(place.key, (str, int)) else None

"""What one run of a program showed, so that a later run can be compared with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treeplay.values.kinds import PLAIN
from treeplay.values.output import Static
from treeplay.values.place import How
from treeplay.values.same import exact_key
from treeplay.values.signature import Built, Ref, Write
from treeplay.values.spec import TensorSpec
from treeplay.values.structure import Leaf, Structure


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a run showed besides the content of its outputs; every run of a program shows the same."""

    results: Leaf | Structure
    refs: tuple[Ref, ...]
    writes: tuple[Write, ...]
    outputs: tuple[TensorSpec, ...]

    def is_like(self, other: RunFacts) -> bool:
        """Whether another run showed the same."""
        return self._comparable() == other._comparable()

    def _comparable(self) -> tuple[Any, ...]:
        refs = [_comparable(ref) for ref in self.refs]
        # A gradient may be that of another tensor, which stands in for the same one.
        writes = [
            (
                write.place.how if write.place.how is How.GRAD else write.place.trail or write.place.label,
                _comparable(write.value),
            )
            for write in self.writes
        ]
        return self.results, refs, writes, self.outputs


def _comparable(value: Ref) -> Any:
    if isinstance(value, Built):
        return value.structure, [_comparable(ref) for ref in value.refs], value.number
    if isinstance(value, Static) and not isinstance(value.value, PLAIN):
        return exact_key(value.value)
    return value

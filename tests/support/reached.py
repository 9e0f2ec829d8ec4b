"""What a walk over the reads of a program's run finds, for tests of its parts."""

from __future__ import annotations

from typing import Any

from treeplay.guards.dependencies import Dependencies
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Findings, Reach


class Holder:
    kind = "holder"
    unread = "unread"

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    def scaled(self) -> Any:
        return self.a


def findings(program: Any, *roots: Any, classes: tuple[type, ...] = (Holder,)) -> Findings:
    """The walk after a run of `program`."""
    with Reads(classes) as reads:
        program(*roots)
    return Reach(reads).walk([(program, "program"), *((value, "argument") for value in roots)])


def reached(program: Any, *roots: Any, classes: tuple[type, ...] = (Holder,)) -> Dependencies:
    """What a run of `program` depends on."""
    return findings(program, *roots, classes=classes).dependencies


def labels(found: Dependencies) -> set[str]:
    """The places of all that is guarded, but those of Python and its library."""
    tables = (guard for guard in found.tables if not guard.label.startswith(("builtins.", "Tensor.", "TensorBase.")))
    return {place for guard in (*tables, *found.items, *found.members, *found.asked) for place, _ in guard.places()}


def functions(found: Dependencies) -> set[str]:
    """The names of the functions that are guarded."""
    return {guard.label.rpartition(".")[2] for guard in found.functions}

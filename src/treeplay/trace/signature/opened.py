"""Which records in the slots of a run count as what they hold, as a tuple does: the run cannot have told which they are.

A program tells one object from another with the same in it by `is`, where it has the other one from somewhere else, by `id`, by
a hash that follows from where it lies, or by a weak reference. Where it may have done so, guards take the object for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

import torch

from treeplay.guards.reads.names import globals_in
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Findings
from treeplay.observe.lines import is_users_or_text
from treeplay.trace.traced import TracedRun
from treeplay.values.kinds import is_a, items
from treeplay.values.place import Place
from treeplay.values.records import held_in_record, is_record


def opened_records(run: TracedRun, findings: Findings, slots: Iterable[Place]) -> list[Any]:
    """The records in `slots` that may be others with the like in them."""
    found: dict[int, Any] = {}
    for place in slots:
        for record in _records_in(place.read_or(None), set()):
            found[id(record)] = record
    if not found or run.reads.code is None or any(map(_asks_for_addresses, run.reads.ran)):
        return []
    references = findings.dependencies.references
    return [
        record
        for key, record in found.items()
        if key not in findings.dependencies.twice
        and key not in run.found.given
        and not _may_be_hashed(type(record), run.reads, findings)
        and not (references and any(reference() is record for reference in references))
    ]


def _records_in(value: Any, seen: set[int]) -> Iterator[Any]:
    if id(value) in seen or is_a(value, torch.Tensor):
        return
    seen.add(id(value))
    if is_a(value, (list, tuple)):
        inside = items(value)
    elif is_a(value, dict):
        inside = [*dict.values(value)]
    elif is_record(value):
        yield value
        inside = [held for _, held in held_in_record(value)]
    else:
        return
    for held in inside:
        yield from _records_in(held, seen)


def _asks_for_addresses(code: CodeType) -> bool:
    """Whether code of the program may ask for the addresses of objects. Python's own and torch's keep none of them."""
    return is_users_or_text(code.co_filename) and "id" in globals_in(code)


def _may_be_hashed(cls: type, reads: Reads, findings: Findings) -> bool:
    """Whether the run may have put a record into what goes by hashes and is there in the next call: in a dictionary or a set it
    would be met again there, but not in the cache of a function."""
    method: Any = cls.__hash__
    if method is None:
        return False
    code = getattr(method, "__code__", None)
    return findings.has_caches if code is None else id(code) in (reads.code or {})

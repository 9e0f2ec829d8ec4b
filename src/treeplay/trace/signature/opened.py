"""Which records in the slots of a run count as what they hold, as a tuple does: the run cannot have told which they are.

A program tells one object from another with the same in it by `is`, where it has the other one from somewhere else, by `id`, by
a hash that follows from where it lies, or by a weak reference. Where it may have done so, guards take the object for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType
from typing import Any

from treeplay.guards.reads.names import globals_in
from treeplay.guards.reads.reads import Reads
from treeplay.guards.walk.reach import Findings
from treeplay.observe.lines import is_users_or_text
from treeplay.trace.traced import TracedRun
from treeplay.values.kinds import is_a, items
from treeplay.values.place import Place
from treeplay.values.records import held_in_record, is_record

_CONTAINERS = (list, tuple, dict)


def within_slots(run: TracedRun, findings: Findings, slots: Iterable[Place]) -> dict[int, Any]:
    """The containers in `slots` by their `id`, and the records that may be others with the like in them."""
    found: dict[int, Any] = {}
    for place in slots:
        _add(place.read_or(None), found)
    # Of a class of which another argument may be the very record in the slot.
    given = {type(leaf) for leaf in run.call.leaves} | {type(places[0].holder) for places in run.found.given.values()}
    is_known = run.reads.code is not None and not any(map(_asks_for_addresses, run.reads.ran))
    return {
        key: value
        for key, value in found.items()
        if is_a(value, _CONTAINERS)
        or (is_known and type(value) not in given and _is_untold(value, run.reads, findings))
    }


def _add(value: Any, found: dict[int, Any]) -> None:
    """Take note of a container or record, and of those in it."""
    is_container = is_a(value, _CONTAINERS)
    if id(value) in found or not (is_container or is_record(value)):
        return
    found[id(value)] = value
    if is_a(value, dict):
        inside = [*dict.values(value)]
    else:
        inside = items(value) if is_container else [held for _, held in held_in_record(value)]
    for held in inside:
        _add(held, found)


def _is_untold(record: Any, reads: Reads, findings: Findings) -> bool:
    dependencies = findings.dependencies
    return (
        id(record) not in dependencies.twice
        and not _may_be_hashed(type(record), reads, findings)
        and not any(reference() is record for reference in dependencies.references)
    )


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

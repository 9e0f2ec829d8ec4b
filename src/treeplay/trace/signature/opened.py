"""Which records in the slots of a run count as what they hold, as a tuple does: the run cannot have told which they are.

A program tells one object from another with the same in it by `is`, where it has the other one from somewhere else, by `id`, by
a hash that follows from where it lies, or by a weak reference. Where it may have done so, guards take the object for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treeplay.guards.reads.names import globals_in, names_in
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
    has_caches = any(not str(function.__module__).startswith("torch.") for function in findings.caching)
    has_hashed = has_caches or has_asked(run.reads, "hash", "__hash__")
    is_known = run.reads.code is not None and not has_asked(run.reads, "id", "__repr__")
    return {
        key: value
        for key, value in found.items()
        if is_a(value, _CONTAINERS)
        or (is_known and type(value) not in given and _is_untold(value, run.reads, findings, has_hashed))
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


def _is_untold(record: Any, reads: Reads, findings: Findings, has_hashed: bool) -> bool:
    dependencies = findings.dependencies
    return (
        id(record) not in dependencies.twice
        and not _may_be_hashed(type(record), reads, has_hashed)
        and not any(reference() is record for reference in dependencies.references)
    )


def has_asked(reads: Reads, function: str, method: str) -> bool:
    """Whether code of the program may have asked for what follows from the address of an object, by this function of Python's,
    also under another name, or by this method of `object`. Python's own code and torch's keep none of it."""
    callers = reads.builtins.get(f"builtins.{function}", ())
    if any(is_users_or_text(code.co_filename) for code in callers):
        return True
    own = (code for code in reads.ran if is_users_or_text(code.co_filename))
    return any(function in globals_in(code) or method in names_in(code) for code in own)


def _may_be_hashed(cls: type, reads: Reads, has_hashed: bool) -> bool:
    """Whether the run may have put a record into what goes by hashes and is there in the next call: in a dictionary or a set it
    would be met again there, but not in the cache of a function, nor where only the hash is kept. `has_hashed`: it may have
    done so with one whose hash is in C."""
    if hashes_by_address(cls):
        return has_hashed
    code = getattr(cls.__hash__, "__code__", None)
    return code is not None and id(code) in (reads.code or {})


def hashes_by_address(cls: type) -> bool:
    """Whether the hash of a class's objects is in C, and so may follow from where they lie."""
    method: Any = cls.__hash__
    return method is not None and not hasattr(method, "__code__")

"""Which objects the containers among the arguments may be: a key tells what they hold, and a program can tell them apart.

It does so by `is`, as a key or a member, by `id`, by a hash that follows from where an object lies, or by a weak reference:

    the run met it elsewhere too (a global, a key, …)     the argument is this very object
    the run asked for what follows from its address       so it is here
    else                                                  it is none of the objects of its class that the run met
    two arguments of one class that were two              they are two; those that were one are one (`meetings`)

Tuples, and other values that are equal by what they hold, are told apart by that alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from treeplay.guards.reads.reads import WHOLE, Reads
from treeplay.guards.walk.reach import Findings
from treeplay.trace.signature.opened import has_asked, hashes_by_address
from treeplay.trace.traced import TracedRun
from treeplay.values.flatten import containers, given_containers
from treeplay.values.place import How, Place
from treeplay.values.signature import Identity, Write
from treeplay.values.structure import DICTS
from treeplay.values.which import Living, getter_of, held_in_keys, which_in


def identity_of(run: TracedRun, findings: Findings, writes: Iterable[Write]) -> Identity:
    """What a later call has to be asked of its containers and objects; notes in the dependencies what was met of their
    classes, for containers that guards go over to."""
    given = dict(_given(run))
    if not given:
        return Identity()
    first: dict[int, str] = {}
    for name, value in given.items():
        first.setdefault(id(value), name)
    dependencies = findings.dependencies
    keys = _keys_given(run)
    by_address = _by_address(run.reads)
    themselves: list[str] = []
    strangers: list[str] = []
    for at, name in first.items():
        is_met = (at in findings.met and at not in findings.left_out) or at in dependencies.twice or at in keys
        (themselves if is_met or by_address(given[name]) else strangers).append(name)
    living = {type(given[name]): Living() for name in strangers}
    for at, value in itertools.chain(findings.met.items(), keys.items()):
        if type(value) in living and at not in first:
            living[type(value)].note(value)
    others = {cls: found for cls, found in living.items() if found}
    dependencies.met.update(others)
    by_class: dict[type, list[str]] = {}
    for name in first.values():
        by_class.setdefault(type(given[name]), []).append(name)
    return Identity(
        tuple((name, getter_of(given[name])) for name in themselves),
        tuple((name, others[type(given[name])]) for name in strangers if type(given[name]) in others),
        tuple(tuple(names) for names in by_class.values() if len(names) > 1),
        tuple(_in_slots(findings, writes, {name: given[name] for name in first.values()})),
    )


def _given(run: TracedRun) -> Iterator[tuple[str, Any]]:
    """The containers and objects of the arguments, each by its variables; but tuples, which are values."""
    call = run.call
    tables: set[str] = set()
    for name, value, part in given_containers(call.structure, call.args, call.kwargs):
        if part.rest is not None and "__dict__" in part.rest and WHOLE not in run.reads.names(value):
            tables.add(f"{name}_{len(part.items) + part.rest.index('__dict__')}")
        if name not in tables and not (part.rest is None and issubclass(part.cls, tuple)):
            yield name, value


def _keys_given(run: TracedRun) -> dict[int, Any]:
    """What is in the keys of dictionaries among the arguments, and in the members of sets."""
    found = containers(run.call.structure, (run.call.args, run.call.kwargs), "")
    return held_in_keys(
        key
        for _, _, part in found
        if part.rest is not None or part.cls in DICTS or part.cls is set
        for key in part.keys
    )


def _in_slots(
    findings: Findings, writes: Iterable[Write], given: Mapping[str, Any]
) -> Iterator[tuple[Place, tuple[str, ...], tuple[int, ...]]]:
    """Where a replay puts other objects of these classes in each call, and the run read what was there."""
    for place in (write.place for write in writes):
        value = place.read_or(None)
        if id(value) in findings.met and not _is_of_arguments(place):
            which = which_in(value, [*given.values()])
            if which:
                yield place, tuple(given), which


def _is_of_arguments(place: Place) -> bool:
    while place.parent is not None:
        place = place.parent
    return place.how is How.ARGUMENT


def _by_address(reads: Reads) -> Callable[[Any], bool]:
    """Whether the run may know an object by what follows from its address."""
    if reads.code is None or has_asked(reads, "id", "__repr__"):
        return lambda value: True
    has_hashed = has_asked(reads, "hash", "__hash__")

    return lambda value: has_hashed and hashes_by_address(type(value))

"""Finds why a recording did not fit a call: the conditions of its call function again, slowly and with names.

Runs only after a miss, so that the warm call carries no text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields

from treeplay.observe.shown import shown
from treeplay.trace.call import Call
from treeplay.tree.keys.key import values_in_objects
from treeplay.tree.table import Observation, Recording
from treeplay.values.mismatch import Mismatch
from treeplay.values.overlap import overlapping
from treeplay.values.signature import Argument, GivenContainer, Signature
from treeplay.values.structure import as_written
from treeplay.wrap.ambience import Ambience
from treeplay.wrap.conditions import AreOne, Condition, Fits
from treeplay.wrap.found import current_inputs
from treeplay.wrap.of_signature import of_arguments, of_meetings, of_numbers, of_state, of_tensors
from treeplay.wrap.places import Operand


def first_mismatch(signature: Signature, call: Call) -> Mismatch | None:
    """The first condition that does not hold, or None if none of those that can be named is broken."""
    return next(_mismatches(signature, call), None)


def nearest_mismatches(signatures: Sequence[Signature], call: Call) -> list[Mismatch]:
    """All that keeps a call from the recording that it is nearest to, each place once; of two as near, the newest."""
    found = [_each_place_once(_mismatches(signature, call)) for signature in signatures]
    return min(reversed(found), key=len, default=[])


def cause_of(recordings: Sequence[Recording], seen: Sequence[Observation], call: Call) -> tuple[str, str]:
    """Why no recording of its key serves a call, after what was `seen` of earlier ones: as a sentence, and in a word."""
    found = nearest_mismatches([recording.signature for recording in recordings], call)
    if not found and recordings:
        memory = memory_mismatch(recordings[-1].signature, recordings[-1].plan.shared, call)
        found = [memory] if memory is not None else []
    if found:
        return "; ".join(map(str, found)), found[0].what
    place = seen[-1].changed(values_in_objects(call)) if seen else None
    if place is not None:
        return f"{place}: another value", place
    return "arguments share memory differently", "memory"


def memory_mismatch(signature: Signature, shared: Sequence[tuple[int, int]], call: Call) -> Mismatch | None:
    """The first two tensors of which one is written, and that share memory though they did not, or the other way round."""
    now = overlapping(current_inputs(signature, call), signature.mutated)
    changed = next(iter(set(now) ^ set(shared)), None)
    if changed is None:
        return None
    told = {True: "shared memory", False: "memory of their own"}
    first, second = (as_written(signature.inputs[at].name) for at in changed)
    return Mismatch(f"{first} and {second}", told[changed in shared], told[changed in now])


def key_mismatches(recorded: Ambience, signature: Signature, now: Ambience, call: Call) -> tuple[Mismatch, ...]:
    """What makes the key of a call another one than that of a recording: modes and arguments."""
    is_alike = call.structure == signature.arguments
    meetings = _differences(of_meetings(signature), call) if is_alike else ()
    return (*mode_mismatches(recorded, now), *_arguments(signature, call), *meetings)


def _each_place_once(found: Iterable[Mismatch]) -> list[Mismatch]:
    """One change may show in several conditions: the first that names a place tells of it, and of what is inside."""
    told: list[Mismatch] = []
    for mismatch in found:
        if not any(mismatch.is_about(other) for other in told):
            told.append(mismatch)
    return told


def _mismatches(signature: Signature, call: Call) -> Iterator[Mismatch]:
    yield from _arguments(signature, call)
    of_all = (*of_state(signature), *of_tensors(signature), *of_numbers(signature))
    if call.structure != signature.arguments:
        of_all = tuple(condition for condition in of_all if not _is_of_arguments(condition))
    yield from _differences(of_all, call)


def _is_of_arguments(condition: Condition) -> bool:
    about = (getattr(condition, field.name) for field in fields(condition))
    return any(isinstance(operand, (Argument, GivenContainer)) for operand in about)


def _differences(conditions: Iterable[Condition], call: Call) -> Iterator[Mismatch]:
    """What does not hold. That a tensor which does not fit is not in its other places is no second change."""
    unfit: list[Operand] = []
    for condition in conditions:
        if isinstance(condition, AreOne) and any(condition.other is of for of in unfit):
            continue
        difference = condition.difference(call)
        if difference is not None:
            yield difference
            unfit += [condition.of] if isinstance(condition, Fits) else []


def mode_mismatches(recorded: Ambience, now: Ambience) -> Iterator[Mismatch]:
    """The modes around the call that are other ones."""
    for what, then, found in recorded.differences(now):
        yield Mismatch(what, shown(then), shown(found))


def _arguments(signature: Signature, call: Call) -> Iterator[Mismatch]:
    if call.structure != signature.arguments:
        yield Mismatch("arguments", "the containers and keys of the first call", "another structure")
    else:
        yield from _differences(of_arguments(signature), call)

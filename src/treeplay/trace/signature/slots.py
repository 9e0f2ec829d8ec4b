"""Slots: the places a program rebinds on each call, from what a snapshot says has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.guards.reads.reads import Reads
from treeplay.observe.shown import shown
from treeplay.trace.numbers.scalars import SYMBOLS, scalar_of, unguarded_value
from treeplay.trace.restore.contents import Change
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.signature.numbers_within import NumbersWithin
from treeplay.trace.signature.references import References
from treeplay.trace.survey.found import GONE, Survey
from treeplay.trace.survey.given import given_name
from treeplay.trace.training.scaling import is_bookkeeping
from treeplay.values.flatten import LeafTest, containers, flatten
from treeplay.values.location import Location
from treeplay.values.output import Static
from treeplay.values.place import How, Place, Trail
from treeplay.values.records import is_record
from treeplay.values.same import is_same, is_value
from treeplay.values.signature import Number, Write, may_be_input
from treeplay.values.structure import Structure, keys_in


def find_writes(
    snapshot: Snapshot,
    results: References,
    numbers: Sequence[Number] = (),
    but: Collection[Trail] | None = None,
    fixed: Collection[Trail] = (),
) -> tuple[Write, ...]:
    """The writes that make a replay leave what the program would; refuses changes that a replay cannot make. `but`: ways to
    places where it does not matter which number is there, nor does it in those of `numbers`; None: it does. `fixed`: ways to
    numbers that are known to be no inputs."""
    inputs = {number.place: number for number in numbers}
    within = NumbersWithin(results.found.watched)
    changes = [change for change in snapshot.changes() if not _is_left_out(change, numbers, results)]
    if but is not None:
        changes = [change for change in changes if change.place not in inputs and change.place.trail not in but]
    _check_let_go(changes, results, snapshot)
    writes: list[Write] = []
    refusals: list[tuple[bool, Refusal]] = []
    for change in changes:
        if _is_computed(change, inputs):
            writes.append(Write(change.place, results.value(change.after)))
            continue
        counts = [each for each in within.counts(change) if _may_become_input(each[0], inputs, fixed)]
        if counts and but is None:
            refusals.append((True, _changes_a_value(results, *counts[0], snapshot.line_of_change(change.place))))
            continue
        is_read_anew = bool(counts) or _is_read_anew(change, inputs)
        try:
            with results.storing(change.place, snapshot.line_of_change):
                if change.before is GONE and change.place.how is How.ITEM:
                    results.check_key(change.place.key, may_be_tensor=False)
                # Of an object that was there a call would find what it holds in the very object of the trace.
                opens = results.found.is_new if _may_be_another(change.before, snapshot.reads) else None
                writes.append(_write(change, results, opens, within, is_read_anew=is_read_anew))
        except Refusal as refusal:
            refusals.append((_is_count(change.before, unguarded_value(change.after)), refusal))
    if refusals:
        raise _told(refusals, _counted(snapshot, inputs, within))
    return tuple(writes)


def _may_become_input(place: Place, inputs: Mapping[Place, Number], fixed: Collection[Trail]) -> bool:
    return place not in inputs and place.trail is not None and place.trail not in fixed


def _told(refusals: list[tuple[bool, Refusal]], counted: Iterable[Trail]) -> Refusal:
    """The one to raise. A count by itself would be an input: what else is in the way is to be told."""
    _, told = min(refusals, key=lambda found: found[0])
    # Or it would keep itself, by the frame in its traceback, and with it all that the run had, until a collection.
    refusals.clear()
    told.counted = tuple(counted)
    return told


def _is_left_out(change: Change, numbers: Sequence[Number], results: References) -> bool:
    """Whether a change is the trace's own, or one that a replay makes by other means."""
    is_same = change.after is change.before
    return not is_same and (_is_our_symbol(change, numbers, results.found) or is_bookkeeping(change, results.found))


def _check_let_go(changes: Sequence[Change], results: References, snapshot: Snapshot) -> None:
    """Refuse to change what the program takes out of its place as well: a replay looks for it there."""
    rebound = {change.place for change in changes}
    for place in (change.place for change in changes):
        step = place.parent if place.how is not How.GRAD else None
        while step is not None:
            if step in rebound:
                raise results.refuse(
                    str(step),
                    "the program changes what is in this place, and puts something else there too",
                    "do one of the two outside of the program, put a changed copy there, or empty what is there by clear()",
                    snapshot.line_of_change(step),
                    may_pass=True,
                )
            step = step.parent


def _is_computed(change: Change, inputs: Mapping[Place, Number]) -> bool:
    """Whether the program has computed a number, from such as are inputs, for a place that is one too or was not read."""
    scalar = scalar_of(change.after)
    is_known = scalar is not None and scalar.text is not None and may_be_input(change.before)
    return is_known and (change.place in inputs or change.is_blind)


def _is_read_anew(change: Change, inputs: Mapping[Place, Number]) -> bool:
    """Whether what a place held before is of no account to the recording: the program did not read it, or it is an input or a
    tuple of numbers that all are."""
    if change.is_blind or change.place in inputs or not isinstance(change.before, tuple):
        return change.is_blind or change.place in inputs
    keys = {place.key for place in inputs if place.parent == change.place}
    return keys == {*range(len(change.before))}


def _counted(snapshot: Snapshot, inputs: Mapping[Place, Number], within: NumbersWithin) -> Iterator[Trail]:
    """The ways to places that are no inputs yet, of numbers instead of which there are others now."""
    for change in snapshot.changes():
        after, trail = unguarded_value(change.after), change.place.trail
        # A symbol is another one also where it happens to be the same number today.
        is_other = change.after is not change.before and may_be_input(change.before) and may_be_input(after)
        if is_other and change.place not in inputs and trail is not None:
            yield trail
        yield from (at.trail for at, *_ in within.counts(change) if at not in inputs and at.trail is not None)


def _is_our_symbol(change: Change, numbers: Sequence[Number], found: Survey) -> bool:
    """Whether the change is only that a number stands as a symbol while the program is traced."""
    if not isinstance(change.after, tuple):
        return any(_is_symbol_of(change.after, number) for number in numbers if number.place == change.place)
    if found.container_places.get(id(change.after)) == change.place:
        return True
    if not isinstance(change.before, tuple) or len(change.after) != len(change.before):
        return False
    # By their parents: groups may share a tuple, whose items are in one place then.
    ours = {number.place.key: number for number in numbers if number.place.parent == change.place}
    # Without one, the program has put the same parts there again.
    return bool(ours) and all(
        _is_symbol_of(new, ours[at]) if at in ours else new is old
        for at, (new, old) in enumerate(zip(change.after, change.before, strict=True))
    )


def _is_symbol_of(value: Any, number: Number) -> bool:
    scalar = scalar_of(value)
    return scalar is not None and scalar.text == number.name


def _may_be_another(value: Any, reads: Reads | None) -> bool:
    """Whether an object is a record, or the program read no attribute of it; and so are those inside of it or a container."""
    _, structure = flatten(value, None, lambda _: True)
    met = (each for _, each, of in containers(structure, value, "") if of.rest is not None)
    return all(
        is_record(each) or (reads is not None and reads.is_watched(each) and not reads.names(each)) for each in met
    )


def _write(
    change: Change, results: References, opens: LeafTest | None, within: NumbersWithin, *, is_read_anew: bool
) -> Write:
    before, after = change.before, change.after
    if results.is_there(after):  # or something else by then, which is in its place
        return Write(change.place, results.value(after))
    if after is before and not isinstance(after, torch.Tensor):
        return Write(change.place, Static(after))  # the same again: whoever put something else there meanwhile
    if after is GONE and change.place.how is not How.ITEM:
        pass  # a replay removes entries of dictionaries only
    elif after is None or after is GONE:
        if (
            before is None
            or isinstance(before, torch.Tensor)
            or _holds(before, torch.Tensor)
            or _was_constant(before, results)
        ):
            return Write(change.place, Static(after))
    # What an argument holds is part of the key, also where it is a count.
    elif results.is_constant(after) and not _holds(after, torch.Tensor):
        if not _is_count(before, after) or is_read_anew or given_name(change.place) is not None:
            return Write(change.place, Static(after))
    elif (
        is_read_anew
        or _is_made_alike(before, after)
        or (_holds(after, (torch.Tensor, *SYMBOLS), opens) and within.are_known(change))
    ):
        return Write(change.place, results.value(after))
    raise _changes_a_value(results, change.place, before, after)


def _changes_a_value(
    results: References, place: Place, before: Any, after: Any, where: Location | None = None
) -> Refusal:
    to = shown(unguarded_value(after))
    return results.refuse(
        str(place),
        f"the program changes a Python value from {shown(before)} to {to} on each call, and a replay runs no Python",
        "change it outside of the program, or keep it in a tensor",
        where,
        may_pass=True,
    )


def _was_constant(value: Any, results: References) -> bool:
    """Whether what was there before is guarded."""
    return is_value(value) or (id(value) in results.lasting and not isinstance(value, (list, dict, set)))


def _is_made_alike(before: Any, after: Any) -> bool:
    """Whether a container took the place of one with the same contents: what each call leaves is what the next one expects."""
    (mine, old), (others, new) = flatten(before), flatten(after)
    if any(isinstance(key, torch.Tensor) for key in (*keys_in(old), *keys_in(new))):
        return False  # which do not compare
    if (
        not isinstance(new, Structure)
        or old != new
        or not all(is_same(*pair) for pair in zip(mine, others, strict=True))
    ):
        return False
    met = [id(each) for value, of in ((before, old), (after, new)) for _, each, _ in containers(of, value, "")]
    return len(met) == len({*met})  # none of them in two places, of which the next call may find two


def _is_count(before: Any, after: Any) -> bool:
    """Whether one number replaced another, as in a counter, which differs on each call."""
    numbers = (int, float, complex)
    return isinstance(before, numbers) and isinstance(after, numbers) and not isinstance(after, bool)


def _holds(value: Any, kinds: type | tuple[type, ...], opens: LeafTest | None = None) -> bool:
    """Whether a value is one of these kinds, or a container with one in it, or an object, for which `opens` says so."""
    return any(isinstance(leaf, kinds) for leaf in flatten(value, None, opens)[0])

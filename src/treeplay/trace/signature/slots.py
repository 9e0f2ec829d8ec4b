"""Slots: the places a program rebinds on each call, from what a snapshot says has changed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.trace.numbers.scalars import scalar_of, value_of
from treeplay.trace.numbers.stand_ins import may_be_input
from treeplay.trace.restore.snapshot import Change, Snapshot
from treeplay.trace.signature.references import References
from treeplay.trace.survey.found import GONE
from treeplay.trace.survey.given import given_name
from treeplay.trace.training.scaling import is_bookkeeping
from treeplay.values.flatten import flatten
from treeplay.values.output import Computed, Static
from treeplay.values.place import Binding, How
from treeplay.values.same import is_value
from treeplay.values.signature import Number, Write


def find_writes(
    snapshot: Snapshot,
    results: References,
    numbers: Sequence[Number] = (),
    but: Collection[Binding] = (),
) -> tuple[Write, ...]:
    """The writes that make a replay leave what the program would; refuses changes that a replay cannot make. `but`: places
    where it does not matter what is there."""
    ours = {number.name for number in numbers}
    inputs = {number.place for number in numbers if may_be_input(number.value)}
    writes = []
    for change in snapshot.changes():
        is_same = change.after is change.before
        if not is_same and (_is_our_symbol(change, ours) or is_bookkeeping(change, results.found)):
            continue
        if change.place in but:
            continue
        computed = scalar_of(change.after)
        if change.place in inputs and computed is not None and computed.text is not None:
            writes.append(Write(change.place, Computed(computed.text)))
            continue
        try:
            writes.append(_write(change, results))
        except Refusal as refusal:
            refusal.counted = tuple(_counted(snapshot, inputs))
            raise
    return tuple(writes)


def _counted(snapshot: Snapshot, inputs: Collection[Binding]) -> Iterator[Binding]:
    """Places that are no inputs yet, of numbers instead of which there are others now."""
    for change in snapshot.changes():
        after = value_of(change.after)
        if (
            change.place not in inputs
            and after is not change.before
            and may_be_input(change.before)
            and may_be_input(after)
        ):
            yield change.place


def _is_our_symbol(change: Change, ours: set[str]) -> bool:
    """Whether the change is only that a number stands as a symbol while the program is traced."""
    now = change.after if isinstance(change.after, tuple) else (change.after,)
    before = change.before if isinstance(change.before, tuple) else (change.before,)
    scalars = [scalar_of(new) for new in now]
    if len(now) != len(before) or not any(scalars):  # without one, the program has put the same parts there again
        return False
    return all(
        (scalar.text in ours and scalar.value == old) if scalar is not None else new is old
        for scalar, new, old in zip(scalars, now, before, strict=True)
    )


def _write(change: Change, results: References) -> Write:
    before, after = change.before, change.after
    if after is before and not isinstance(after, torch.Tensor):
        return Write(change.place, Static(after))  # the same again: whoever put something else there meanwhile
    if results.is_there(after):
        return Write(change.place, results.value(after))
    if after is GONE and change.place.how is not How.ITEM:
        pass  # a replay removes entries of dictionaries only
    elif after is None or after is GONE:
        if before is None or isinstance(before, torch.Tensor) or _has_tensors(before) or _is_constant(before, results):
            return Write(change.place, Static(after))
    elif _has_tensors(after):
        return Write(change.place, results.value(after))
    # What an argument holds is part of the key, also where it is a count.
    elif _is_constant(after, results) and (
        not _is_count(before, after) or change.is_blind or given_name(change.place) is not None
    ):
        return Write(change.place, Static(after))
    raise results.refuse(
        str(change.place),
        f"the program changes a Python value from {_short(change.before)} to {_short(change.after)} on each call, "
        "and a replay runs no Python",
        "change it outside of the program, or keep it in a tensor",
        may_pass=True,
    )


def _is_constant(value: Any, results: References) -> bool:
    """Whether the next call would store the same value: what it was made of is guarded, and so is what was there before."""
    return is_value(value) or (id(value) in results.lasting and not isinstance(value, (list, dict, set)))


def _is_count(before: Any, after: Any) -> bool:
    """Whether one number replaced another, as in a counter, which differs on each call."""
    numbers = (int, float, complex)
    return isinstance(before, numbers) and isinstance(after, numbers) and not isinstance(after, bool)


def _has_tensors(value: Any) -> bool:
    leaves, _ = flatten(value)
    return bool(leaves) and any(isinstance(leaf, torch.Tensor) for leaf in leaves)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"a {type(value).__name__}"

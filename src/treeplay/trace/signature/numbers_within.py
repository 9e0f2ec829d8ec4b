"""Numbers within containers and records that a program puts anew into a place: `self.p = (x * 0.9, t + 1)`, where a tuple was
before; `self.state = dataclasses.replace(self.state, step=self.state.step + 1)`.

Where another number is within than there was, it is a count, which may be an input: then the place holds the like in each call.
An object that is no record and was replaced is another one to guards, whatever is in it.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from treeplay.trace.numbers.scalars import SYMBOLS, unguarded_value
from treeplay.trace.restore.contents import Change
from treeplay.trace.survey.found import GONE
from treeplay.values.flatten import flatten
from treeplay.values.kinds import table_of
from treeplay.values.place import How, Place
from treeplay.values.records import is_record
from treeplay.values.same import is_same
from treeplay.values.signature import may_be_input
from treeplay.values.structure import Structure


class NumbersWithin:
    """The numbers that a survey found in containers, by the places that lead to them."""

    def __init__(self, watched: Iterable[tuple[Place, Any]]) -> None:
        self._below: dict[Place, list[tuple[Place, Any]]] = collections.defaultdict(list)
        for place, value in watched:
            step = place.parent if may_be_input(value) else None
            while step is not None:
                self._below[step].append((place, value))
                step = step.parent

    def counts(self, change: Change) -> Iterator[tuple[Place, Any, Any]]:
        """The places of numbers in what a place held before that are others in what it holds now, with both."""
        if type(change.after) is type(change.before) and not change.is_blind:
            for place, value in self._below.get(change.place, ()):
                _, after = _counterpart(place, change)
                if isinstance(after, SYMBOLS) or (may_be_input(after) and not is_same(after, value)):
                    yield place, value, after

    def are_known(self, change: Change) -> bool:
        """Whether each symbol in what a place holds now is in a container, and if a number was there, the survey found that."""
        (old, before), (new, after) = flatten(change.before), flatten(change.after)
        if before != after or not isinstance(after, Structure):
            return isinstance(after, Structure) or not isinstance(change.after, SYMBOLS)
        pairs = zip(old, new, strict=True)
        many = sum(isinstance(now, SYMBOLS) and may_be_input(unguarded_value(was)) for was, now in pairs)
        return many <= len([*self.counts(change)])


def _counterpart(place: Place, change: Change) -> tuple[Any, Any]:
    """What was in `place`, within the container or record that was replaced by another one, and what is there in that one."""
    if place == change.place:
        return change.before, change.after
    if place.parent is None:
        return GONE, GONE
    before, owner = _counterpart(place.parent, change)
    if type(owner) is not type(before):
        return GONE, GONE
    if place.how is How.ITEM and place.holder is not before and is_record(before):
        before, owner = table_of(before), table_of(owner)
    if type(owner) is not type(place.holder):
        return GONE, GONE
    return place.read_or(GONE), replace(place, holder=owner).read_or(GONE)

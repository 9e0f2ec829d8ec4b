"""Numbers in a program's state that differ from call to call: inputs of a recording, as numbers among the arguments are.

    self.temperature = 0.9 ** epoch       set between calls: a call differs from the observed one by such numbers alone
    self.steps += 1                       set by the program: the trace has found another number where there was one

At first such a number is guarded, like any plain value. Once it has changed it is an input, and where the program sets it, each
replay does too. Where a recording cannot have it as an input, because the program needs its value while it runs, it is guarded
again, for good.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from treeplay.trace.call import Call
from treeplay.trace.numbers.stand_ins import may_be_input
from treeplay.tree.table import Observation
from treeplay.values.place import Binding

_MOST = 64  # of one program: what has more is a table of numbers


class StateNumbers:
    """Where the numbers in one program's state are that are inputs."""

    def __init__(self, *, may_be_inputs: bool) -> None:
        self._may_be_inputs = may_be_inputs
        self.places: tuple[Binding, ...] = ()
        self._fixed: set[Binding] = set()

    def marked(self, call: Call) -> Call:
        """The call, with the places of the numbers that are to be inputs of a recording."""
        return replace(call, state=self.places) if self.places else call

    def found(self, seen: Observation) -> bool:
        """Whether today's values differ from those that were seen by numbers alone; they are inputs from now on."""
        was = dict(seen.found.watched)
        places = list(seen.found.changes(self.places))
        are_numbers = all(
            may_be_input(was[place]) and type(place.read_or(None)) is type(was[place]) for place in places
        )
        return are_numbers and self.add(places)

    def add(self, places: Collection[Binding]) -> bool:
        """Have the numbers there be inputs from now on; whether that is something new."""
        new = [place for place in dict.fromkeys(places) if place not in self.places]
        if not self._may_be_inputs or not new or not self._fixed.isdisjoint(new):
            return False
        if len(self.places) + len(new) > _MOST:
            return False
        self.places = (*self.places, *new)
        return True

    def fix(self, places: Iterable[Binding]) -> None:
        """Have these, or all if there are none, be guarded again."""
        fixed = set(places) or {*self.places}
        self._fixed |= fixed
        self.places = tuple(place for place in self.places if place not in fixed)

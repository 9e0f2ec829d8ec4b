"""Numbers in a program's state that differ from call to call: inputs of a recording, as numbers among the arguments are.

    self.temperature = 0.9 ** epoch       set between calls: a call differs from the observed one by such numbers alone
    self.steps += 1                       set by the program: the trace has found another number where there was one

At first such a number is guarded, like any plain value. Once it has changed it is an input, and where the program sets it, each
replay does too. Where a recording cannot have it as an input, because the program needs its value while it runs, it is guarded
again, until a program that was refused is tried again: what it does in its first calls alone has passed by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from treeplay.trace.call import Call
from treeplay.trace.survey.found import GONE
from treeplay.values.location import Location
from treeplay.values.place import Trail
from treeplay.values.same import is_same
from treeplay.values.signature import may_be_input

_MOST = 1024  # of one program, in which an optimizer may count for each parameter: what has more is a table of numbers


class StateNumbers:
    """Where the numbers in one program's state are that are inputs: the way to each, which keeps no object alive."""

    def __init__(self, *, may_be_inputs: bool) -> None:
        self._may_be_inputs = may_be_inputs
        self.trails: tuple[Trail, ...] = ()
        self.ran: set[str] = set()
        """The names in code that traces saw run, also where no survey followed it: a number is read under these."""
        self._fixed: dict[Trail, Location | None] = {}  # with where the program needs the number itself

    def marked(self, call: Call) -> Call:
        """The call, with the numbers that are to be inputs of a recording, and those that are known to be none."""
        return replace(call, state=self.trails, fixed=frozenset(self._fixed)) if self.trails or self._fixed else call

    def found(self, before: Mapping[Trail, Any], now: Mapping[Trail, Any]) -> bool:
        """Whether today's plain values differ from those of an earlier call by numbers alone; they are inputs from now on."""
        pairs = {trail: (was, now.get(trail, GONE)) for trail, was in before.items() if trail not in self.trails}
        differing = {trail: pair for trail, pair in pairs.items() if not is_same(*pair)}
        are_numbers = all(may_be_input(was) and type(value) is type(was) for was, value in differing.values())
        return are_numbers and self.add(differing)

    def add(self, trails: Collection[Trail]) -> bool:
        """Have the numbers there be inputs from now on; whether that is something new."""
        new = [trail for trail in dict.fromkeys(trails) if trail not in self.trails]
        if not self._may_be_inputs or not new or not self._fixed.keys().isdisjoint(new):
            return False
        if len(self.trails) + len(new) > _MOST:
            return False
        self.trails = (*self.trails, *new)
        return True

    def needed_at(self, trails: Iterable[Trail]) -> Location | None:
        """The line for which one of these is no input, if one is known."""
        return next((where for trail in trails if (where := self._fixed.get(trail)) is not None), None)

    def fix(self, trails: Iterable[Trail], where: Location | None = None) -> None:
        """Have these, which the program needs at the line `where`, or all if there are none, be guarded again."""
        fixed = set(trails)
        where = where if fixed else None
        fixed = fixed or {*self.trails}
        self._fixed |= dict.fromkeys(fixed, where)
        self.trails = tuple(trail for trail in self.trails if trail not in fixed)

    def free(self) -> None:
        """Have all be inputs again that change: what the program needed when it was refused, it may need no more."""
        self._fixed.clear()

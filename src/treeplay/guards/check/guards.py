"""The check of a recording's guards: a quick one for warm calls (`quick.py`), and a slow comparison when that says no.

    holds()    versions of dictionaries, empty containers, elements, classes, code …
       └ no ─▶ again()   compares values. All alike: the new versions count from here on, and nothing is recorded anew.
                         Something differs: `what` says where, what was recorded and what was found.

A dictionary whose version keeps changing while the guarded entries stay (a script's globals, an object that counts its calls)
is compared entry by entry from the second time on, and a list whose elements are replaced is read in each call.
"""

from __future__ import annotations

import functools
import operator
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from treeplay.guards.alive import one_would_be_gone
from treeplay.guards.check.quick import QuickCheck
from treeplay.guards.check.state import StateCheck
from treeplay.guards.check.words import never
from treeplay.guards.conditions import Comparison
from treeplay.guards.containers import Table
from treeplay.guards.dependencies import Dependencies
from treeplay.guards.entries import spot_of
from treeplay.guards.facts import TensorFacts
from treeplay.guards.told import plain_values, summary_of_guards
from treeplay.torch_seam.dynamo import version_of_table
from treeplay.values.mismatch import Mismatch
from treeplay.values.place import How, Place
from treeplay.values.signature import Identity

_WORTH = 5
"""Guarded dictionaries for each element that is replaced seldom, from which on it is read in each call."""


class Guards:
    """All guards of a recording. Not safe for threads: the owner of the recording takes turns."""

    __slots__ = (
        "__weakref__",
        "_dependencies",
        "_facts",
        "_holders",
        "_pinned",
        "_quick",
        "_spots",
        "_state",
        "_state_is_alike",
        "compared_with_arguments",
        "holds",
        "identity",
        "kept",
        "may_keep",
        "places_of_inputs",
        "unread_arguments",
        "what",
    )

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._facts = [TensorFacts(tensor, label) for tensor, label in dependencies.tensors.values()]
        self.what: Mismatch | None = None
        self.places_of_inputs: tuple[Place, ...] = ()
        self.compared_with_arguments: dict[int, Place] = {}  # of tensors that others may replace, by their `id`
        self.identity = Identity()  # of the containers among the arguments
        self.unread_arguments: frozenset[int] = frozenset()  # leaves in attributes of objects that the run did not read
        self._spots: set[tuple[int, Any] | None] = set()  # on the way to the state that `keeps` was asked for
        self._pinned: set[tuple[int, Any]] | None = None  # what `Dependencies.pinned` said last
        self.may_keep = False  # whether `holds` implies that all of this state is what it was in the last call
        self.kept: tuple[Any, ...] | None = None  # what a call found there, for the next one
        self._holders: dict[int, dict[Any, Any]] = {}  # dictionaries that are guarded, by their `id`
        self._state_is_alike = StateCheck()
        self._state: dict[int, int] = {}  # the `id` of the attributes of the tensor in each of these places
        self._quick: QuickCheck | None = None
        # Not a method, by which guards that are never asked would keep themselves.
        self.holds: Callable[[], bool] = functools.partial(Guards.again, weakref.proxy(self))

    def again(self) -> bool:
        """Compare values, after the quick check said no."""
        self.kept = None
        self.what = self.first_difference()
        return self.what is None

    def first_difference(self) -> Mismatch | None:
        """What no longer is as recorded; if nothing is, the guards count from this moment on."""
        comparison = Comparison(self._dependencies.containers)
        tables = self._dependencies.tables
        touched = [table for table in tables if not table.is_steady or table.filled or self._is_newer(table)]
        found = next(self._differences(comparison, touched), None)
        if found is None:
            self._accept(comparison, touched)
        return found

    def _accept(self, comparison: Comparison, touched: Sequence[Table]) -> None:
        """Go over to what was found, all or nothing: nothing differs."""
        moved = [
            (guard, guard.holder) for guard in self._dependencies.containers.values() if id(guard) in comparison.moved
        ]
        for commit in comparison.commits:
            commit()
        self._dependencies.let_go(comparison.replaced)
        self._dependencies.meet_again(moved)
        is_young = self._quick is None or self._quick.is_young
        for table in touched:
            is_first = table.version == -1 or id(table) in comparison.moved  # not compared before
            table.go_over_to(table.holder)
            table.size = len(table.holder)
            table.has_changed(0 if is_first else table.times + 1 if is_young else 1)
        for guard in (*self._dependencies.items, *self._dependencies.members):
            # Elements that were replaced by alike ones are compared by identity from here on.
            before = guard.recorded
            guard.go_over_to(guard.holder)
            if not all(map(operator.is_, before, guard.recorded)):
                # To read a few elements in each call costs less than to compare all guards now and then.
                are_few = len(guard.free | guard.written) * _WORTH < len(self._dependencies.tables)
                guard.has_changed(guard.times + 1 if is_young or are_few else 1)
        self._write()

    def _differences(self, comparison: Comparison, touched: Sequence[Table]) -> Iterator[Mismatch]:
        dependencies = self._dependencies
        yield from dependencies.differing_objects()
        fixed = [table for table in touched if not table.may_be_replaced]
        # Containers that may be found elsewhere come last, in the order in which they lead to each other.
        loose = [guard for guard in dependencies.containers.values() if guard.may_be_replaced]
        untouched = {id(table) for table in dependencies.tables} - {id(table) for table in touched}
        strict = [guard for guard in (*dependencies.items, *dependencies.members) if not guard.may_be_replaced]
        for guard in (
            *fixed,
            *strict,
            *dependencies.asked,
            *dependencies.functions,
            *dependencies.data,
            *loose,
            *self._facts,
        ):
            found = guard.differs(comparison) if id(guard) not in untouched else None
            if found is not None:
                yield found
        if not self.are_distinct(comparison.replaced):
            yield Mismatch("state", "different tensors", "one tensor in two places")
        if not comparison.slots_are_apart() or not dependencies.together():
            yield Mismatch("state", "different containers", "one container in two places")
        yield from self._attributes_of_state(comparison)

    def _attributes_of_state(self, comparison: Comparison) -> Iterator[Mismatch]:
        """State that was replaced has the attributes of what it took the place of; they are guarded from then on."""
        tables = {id(table.holder): table for table in self._dependencies.tables}
        for at, place in enumerate(self.places_of_inputs):
            found = place.anew().read_or(None)
            if not isinstance(found, torch.Tensor):
                continue
            attributes, before = vars(found), self._state.get(at)
            table = tables.get(before) if before is not None and before != id(attributes) else None
            difference = table.differences(comparison, attributes) if table is not None else None
            if difference is not None:
                yield difference
            elif table is not None:
                comparison.moved.add(id(table))
                comparison.commits.append(functools.partial(table.go_over_to, attributes))
            if table is not None or before is None:
                comparison.commits.append(functools.partial(self._state.__setitem__, at, id(attributes)))

    def keeps_alive(self, every: Collection[Guards]) -> bool:
        """Whether something that a weak reference leads to would be gone, were it not for these guards and `every` other's."""
        dependencies = self._dependencies
        met = [weakref.ref.__call__(reference) for reference in dependencies.references]
        for guard in dependencies.all_containers():
            met += guard.left_out()
        found = [value for value in met if value is not None]
        if not found:
            return False
        guarded, own = set[int](), {id(met), id(found)}
        for guards in {self, *every}:
            # What is guarded itself is the program's, unless it would be gone too.
            guarded |= {id(guard.holder) for guard in guards._dependencies.all_containers()}
            guarded |= {id(value) for value, _, _ in guards._dependencies.kinds}
            own |= {*map(id, guards._own_containers())}
        return one_would_be_gone(found, own - guarded, guarded)

    def forget(self) -> None:
        """Hold nothing any more, and no call."""
        if self._quick is not None:
            self._quick.forget()
        self._dependencies.forget()
        self._quick, self._facts, self._holders = None, [], {}
        self.places_of_inputs, self.kept, self.holds = (), None, never
        self._state_is_alike.forget()
        self.compared_with_arguments, self.identity = {}, Identity()

    def _own_containers(self) -> Iterator[Any]:
        """Whatever of ours may hold an object that was guarded."""
        dependencies = self._dependencies
        yield self._holders
        for table in dependencies.tables:
            yield from (table, table.recorded, table.compared)
        for guard in (*dependencies.items, *dependencies.members):
            yield from (guard, guard.recorded)
        yield from (*dependencies.kinds, *dependencies.attributes)
        yield from (living.kept for living in dependencies.met.values())
        yield from dependencies.asked
        for _, pattern in dependencies.together.slots:
            yield from pattern.parts
        if self._quick is not None:
            yield from self._quick.containers()

    def are_distinct(self, replaced: Mapping[int, torch.Tensor] = MappingProxyType({})) -> bool:
        """Whether state tensors that are inputs, and tensors of which only facts were read, are still different ones;
        `replaced` gives those that took the place of one of the latter."""
        found = [place.anew().read_or(None) for place in self.places_of_inputs]
        found += [content() for content in self._dependencies.filled()]
        apart = [id(tensor) for tensor in found if isinstance(tensor, torch.Tensor)]
        apart += [id(replaced[at]) if at in replaced else at for at in self._dependencies.tensors]
        return len(apart) == len({*apart})

    @staticmethod
    def _is_newer(table: Table) -> bool:
        # Filling an empty dictionary from another one counts as no change on Python 3.12 and later.
        return version_of_table(table.holder) != table.version or len(table.holder) != table.size

    def keeps(self, place: Place) -> bool:
        """Whether, as long as these guards hold, `place` may be found once for all calls: then `kept` and `may_keep` are
        for what is there too."""
        if self._pinned is None:
            self._pinned = self._dependencies.pinned()
        if not _stays(place, self._pinned):
            return False
        self._spots |= _spots_of(place)
        return True

    def tensors(self) -> list[torch.Tensor]:
        """The tensors of which facts are guarded."""
        return [tensor for tensor, _ in self._dependencies.tensors.values()]

    def shown(self) -> tuple[str, ...]:
        """The plain values among what is guarded, each as its place and what it was."""
        return plain_values(self._dependencies)

    def __str__(self) -> str:
        return summary_of_guards(self._dependencies)

    # --- the quick check ------------------------------------------------------------------------------------

    def _write(self) -> None:
        """Make `holds` say yes from here on, until something changes."""
        self._holders = {id(table.holder): table.holder for table in self._dependencies.tables}
        self._pinned = self._dependencies.pinned() if self._spots or self.places_of_inputs else None
        # Where containers were replaced, from today's on.
        self.places_of_inputs = tuple(place.anew() for place in self.places_of_inputs)
        pinned = self._pinned or set()
        loose: dict[int, Place] = {}
        others: list[Place] = []
        fixed = {*self._dependencies.tensors}
        for at, place in enumerate(self.places_of_inputs):
            if _stays(place, pinned):
                fixed.add(id(place.read_or(None)))
            elif _spots_of(place, but=How.GRAD) <= pinned:
                others.append(place)
            else:
                loose[at] = place
        self._state_is_alike.compare(
            [*loose.values()],
            others,
            before=[self._state.get(at, 0) for at in loose],
            filled=self._dependencies.filled(),
            fixed=frozenset(fixed),
            holders=self._holders,
        )
        if self._quick is None:
            self._quick = QuickCheck(
                self._dependencies, self._facts, state_is_alike=self._state_is_alike, again=self.again, use=self._use
            )
        self._quick.write()
        self.kept = None
        self.may_keep = bool(self._spots) and self._spots <= pinned

    def _use(self, holds: Callable[[], bool]) -> None:
        self.holds = holds


def _stays(place: Place, pinned: set[Any]) -> bool:
    return place.may_be_kept and _spots_of(place) <= pinned


def _spots_of(place: Place, but: How | None = None) -> set[tuple[int, Any] | None]:
    """The entries on the way to a place that may become others: not those of a tuple, which stays what it is where it is."""
    return {spot_of(step) for step in place.steps if step.how is not but and not isinstance(step.holder, tuple)}

"""What a run depends on: guards by kind, each object once. `walk/` collects them, `check/` asks them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Any

import torch

from treeplay.guards.alike import NO_WAYS, Elsewhere, Ways
from treeplay.guards.caches import CachedResults
from treeplay.guards.conditions import Asked, Code, ContainerGuard, Data
from treeplay.guards.containers import Items, Members, Table
from treeplay.guards.entries import hashed, keys_of, spot_of
from treeplay.guards.patterns import Pattern, Together
from treeplay.observe.shown import shown
from treeplay.torch_seam.patched import ABSENT
from treeplay.torch_seam.tensors import unusual
from treeplay.values.kinds import builtin_of, is_a, table_of
from treeplay.values.mismatch import Mismatch
from treeplay.values.place import How, Place
from treeplay.values.same import components, is_value
from treeplay.values.which import Living


class Dependencies:
    """The guards of a recording, and what is asked of all of them together."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.items: list[Items] = []
        self.members: list[Members] = []
        self.asked: list[Asked] = []
        self.references: list[weakref.ref[Any]] = []
        self.functions: list[Code] = []
        self.kinds: list[tuple[Any, type, str]] = []
        self.attributes: list[
            tuple[Any, dict[str, Any], str]
        ] = []  # objects, each with the dictionary that these lie in
        self.data: list[Data] = []
        self.tensors: dict[int, tuple[torch.Tensor, str]] = {}
        self.containers: dict[int, ContainerGuard] = {}
        self._elsewhere = Elsewhere(frozenset(), {})
        self.together = Together(())  # all slots with more than a tensor in them
        self.twice: Set[int] = frozenset()  # what was met in more than one place, by `id`
        self.met: dict[type, Living] = {}  # by `id`, of classes of which an argument may be another object
        self.orders: dict[
            type, tuple[type, ...]
        ] = {}  # classes, and in which order theirs and their bases' entries count

    def add_table(self, table: Table) -> None:
        """Add a guarded dictionary."""
        self.tables.append(table)
        if table.is_whole:
            self.containers.setdefault(id(table.holder), table)

    def all_containers(self) -> tuple[ContainerGuard, ...]:
        """Guards of dictionaries, lists and sets, whole or in part."""
        return (*self.tables, *self.items, *self.members)

    def free(
        self,
        spots: Iterable[tuple[int, Any]],
        written: Iterable[tuple[int, Any]],
        numbers: Iterable[Place] = (),
        *,
        within: Mapping[int, Any] = MappingProxyType({}),
        inputs: Set[int] = frozenset(),
        taken: Set[int] = frozenset(),
    ) -> None:
        """Leave out what the warm call reads anew and checks by itself, `numbers` within containers too, and be generous where
        a replay writes itself. `within`: the containers in what is there, and the records of which what they hold counts, by
        `id`. `inputs`: tensors, by `id`, too; `taken`: objects that a replay takes from where they are, and returns or stores.

        A tensor that is a key of a dictionary, as a parameter is of its optimizer's state, may not be another one.
        """
        own, slots, ways = set(spots), set(written), _ways_to(numbers)
        keys_of_tables = {id(key) for table in self.tables if table.is_whole for key in table.recorded}
        inside = dict(within)
        staying = self._values_that_stay(slots, inside)
        while not staying.isdisjoint(inside):  # what is in another place too, and so what is in it
            inside = {key: value for key, value in inside.items() if key not in staying}
            staying = self._values_that_stay(slots, inside)
        opened = [value for value in inside.values() if not is_a(value, (list, tuple, dict))]
        self._leave_to_slots(opened)
        read = frozenset(
            {
                *(id(table.holder) for table in self.tables),
                *(asked.spot[0] for asked in self.asked if asked.spot is not None),
                *taken,
            }
        )
        written_into = {holder for holder, _ in slots}
        self._elsewhere = elsewhere = Elsewhere(
            read,
            {value: value in written_into for value in staying},
            frozenset(map(id, opened)),
            frozenset(id(value) for value, _, _ in self.kinds),
            inputs,
            has_weak=bool(self.references),
        )
        patterns: list[tuple[Callable[[], Any], Pattern]] = []
        guard: ContainerGuard
        for guard in (*self.tables, *self.items):
            keys = keys_of(guard)
            here = id(guard.holder)
            guard.free |= {
                key for key in keys if (here, hashed(key)) in own and id(guard.recorded[key]) not in keys_of_tables
            }
            guard.written |= {
                key for key in keys if (here, hashed(key)) in slots and id(guard.recorded[key]) not in staying
            }
            guard.elsewhere = elsewhere
            guard.ways = {key: ways[here, hashed(key)] for key in keys if (here, hashed(key)) in ways} if ways else {}
            guard.slots = {
                key: Pattern(guard.recorded[key], elsewhere, guard.ways.get(key, NO_WAYS)) for key in guard.written
            }
            patterns += [(functools.partial(guard.content_at, key), pattern) for key, pattern in guard.slots.items()]
            guard.is_steady = not guard.written  # each replay changes it
        for asked in self.asked:
            asked.is_free = asked.spot in own and id(asked.recorded) not in keys_of_tables
            asked.ways = ways.get(asked.spot, NO_WAYS) if asked.spot is not None else NO_WAYS
            if asked.spot in slots and id(asked.recorded) not in staying:
                asked.slot = Pattern(asked.recorded, elsewhere, asked.ways)
                patterns.append((asked.ask, asked.slot))
        self.together = Together([slot for slot in patterns if slot[1].may_be_shared])

    def _leave_to_slots(self, opened: Iterable[Any]) -> None:
        """Guard nothing of records that are in slots, where what is found is compared with what they held."""
        known = {id(value) for record in opened for value in (record, table_of(record)) if value is not None}
        if not known:
            return
        self.tables = [table for table in self.tables if id(table.holder) not in known]
        self.asked = [asked for asked in self.asked if asked.spot is None or asked.spot[0] not in known]
        self.kinds = [kind for kind in self.kinds if id(kind[0]) not in known]
        self.attributes = [found for found in self.attributes if id(found[0]) not in known]
        self.containers = {key: guard for key, guard in self.containers.items() if key not in known}
        for living in self.met.values():
            for key in known:
                living.lose(key)

    def let_go(self, tensors: Iterable[int]) -> None:
        """Forget tensors that others took the place of, by their `id`, which any new object may have from now on."""
        for tensor in tensors:
            self.tensors.pop(tensor, None)
            self._elsewhere.staying.pop(tensor, None)

    def meet_again(self, moved: Iterable[tuple[ContainerGuard, Any]]) -> None:
        """Note among what was `met` that guards went over to other containers than these."""
        for guard, before in moved:
            living = self.met.get(type(before))
            if living is not None:
                living.go_over(before, guard.holder)

    def replaceable(self, but: Set[int]) -> Iterator[tuple[ContainerGuard, Any, torch.Tensor]]:
        """Tensors that no operator read and that are in one place alone, `but` for these by their `id`; each with the guard and
        the key of this place."""
        but = but | self.twice
        found = {
            at: tensor
            for at, (tensor, _) in self.tensors.items()
            if at not in but and not vars(tensor) and unusual(tensor) is None
        }
        for guard in (*self.tables, *self.items):
            if isinstance(guard, CachedResults):  # whose dictionary does not give them
                continue
            for key in {*keys_of(guard)} - guard.free - guard.written:
                if id(guard.recorded[key]) in found:
                    yield guard, key, found[id(guard.recorded[key])]

    def filled(self) -> tuple[Callable[[], Any], ...]:
        """What gives the content of each place that others fill with one tensor after the other."""
        guards = (*self.tables, *self.items)
        return tuple(
            functools.partial(builtin_of(guard.holder).__getitem__, guard.holder, key)
            for guard in guards
            for key in guard.filled
        )

    def _values_that_stay(self, slots: set[tuple[int, Any]], inside: Mapping[int, Any]) -> set[int]:
        """Objects that are in a place which no replay writes, by their `id`, but for places that are `inside` of what is in one
        that a replay does write. There nothing else may be instead of such an object: the program may have put it from one
        place to the other, which was no change."""
        if not slots:
            return set()
        left = {*inside, *(id(table) for value in inside.values() if (table := table_of(value)) is not None)}
        found = [
            guard.recorded[key]
            for guard in (*self.tables, *self.items)
            if id(guard.holder) not in left
            for key in keys_of(guard)
            if (id(guard.holder), hashed(key)) not in slots
        ]
        asked = (one for one in self.asked if one.spot not in slots and (one.spot is None or one.spot[0] not in left))
        found += [one.recorded for one in asked]
        for function in self.functions:
            found += [*(function.defaults or ()), *(function.keywords or {}).values()]
        stay: dict[int, Any] = {}
        while found:  # a tuple is no place by itself
            value = found.pop()
            if id(value) not in stay and not _is_value_throughout(value):
                stay[id(value)] = value
                found += tuple.__iter__(value) if is_a(value, tuple) else ()
        return {*stay}

    def guard_the_way(self, places: Iterable[Place], *, themselves: bool = False) -> None:
        """Guard every step to `places` that nothing guards yet, and if so told the places `themselves`: a warm call goes this
        way, the run may have gone another."""
        known = {(id(guard.holder), hashed(key)) for guard in (*self.tables, *self.items) for key in keys_of(guard)}
        known |= {asked.spot for asked in self.asked if asked.spot is not None}
        for place in places:
            if not place.is_read_anew:  # but from where it was, as the defaults of a function are
                self._stay_at(place.holder)
            step = place if themselves else place.parent
            while step is not None:
                spot = spot_of(step) if step.how not in (How.ROOT, How.ARGUMENT, How.GRAD) else None
                if spot is not None and spot not in known and not isinstance(step.holder, tuple):
                    known.add(spot)
                    asked = Asked(functools.partial(step.read_or, ABSENT), str(step), spot)
                    self.asked.append(asked)
                    self._stay_at(asked.recorded)
                step = step.parent

    def pinned(self) -> set[tuple[int, Any]]:
        """Entries whose values a warm call finds to be the very objects that were compared last, as long as nothing changes."""
        found = {
            (id(guard.holder), hashed(key))
            for guard in (*self.tables, *self.items)
            for key in keys_of(guard)
            if guard.is_steady or key not in guard.free | guard.written
        }
        kept = (asked for asked in self.asked if not asked.is_free and asked.slot is None)
        return found | {asked.spot for asked in kept if asked.spot is not None}

    def differing_objects(self) -> Iterator[Mismatch]:
        """Classes with other bases, objects of other classes, and objects whose attributes lie in another dictionary."""
        for cls, order in self.orders.items():
            if cls.__mro__ is not order and cls.__mro__ != order:
                yield Mismatch(f"{cls.__qualname__}.__mro__", shown(order), "other classes")
        for value, cls, label in self.kinds:
            if type(value) is not cls:
                yield Mismatch(f"{label}.__class__", shown(cls), shown(type(value)))
        for value, table, label in self.attributes:
            if table_of(value) is not table:
                yield Mismatch(f"{label}.__dict__", "the dictionary that it had", "another one")

    def forget(self) -> None:
        """Hold nothing any more."""
        for found in (self.tables, self.items, self.members, self.asked, self.functions, self.data):
            found.clear()
        self.kinds.clear()
        for living in self.met.values():  # conditions of calls have them too
            living.clear()
        self.met.clear()
        self.attributes.clear()
        self.together = Together(())
        for by_object in (self.containers, self.tensors, self.orders):
            by_object.clear()

    def _stay_at(self, value: Any) -> None:
        """The run and a warm call go to this container by two ways, and it may not be replaced on one of them alone."""
        guard = self.containers.get(id(value))
        if guard is not None:
            guard.may_be_replaced = False


def _ways_to(numbers: Iterable[Place]) -> Mapping[tuple[int, Any], Ways]:
    """The ways to numbers from each entry that leads to them through containers alone."""
    found: dict[tuple[int, Any], dict[Any, Any]] = {}
    for place in numbers:
        way: tuple[Any, ...] = (place.key,)
        step = place
        while step.parent is not None and step.is_read_anew:
            step = step.parent
            spot = spot_of(step) if step.how not in (How.ROOT, How.ARGUMENT, How.GRAD) else None
            if spot is not None:
                under = found.setdefault(spot, {})
                for key in way[:-1]:
                    under = under.setdefault(key, {})
                under[way[-1]] = None
            way = (step.key, *way)
    return found


def _is_value_throughout(value: Any) -> bool:
    """Whether another object can be the same as `value`, with whatever is in it."""
    held = components(value)
    return is_value(value) if held is None else all(map(_is_value_throughout, held))

"""Contents: what is in the places that a survey found, before a trace and after it: in containers, in single places as closure
cells, in memory without objects, and the parts of classes and functions."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from treeplay.observe.shown import ShownText, shown
from treeplay.sandbox.teardown import Teardown, each
from treeplay.trace.restore.bare import bare, fill
from treeplay.trace.restore.memory import MemoryBefore
from treeplay.trace.restore.parts import PartsBefore
from treeplay.trace.restore.whose import Whose
from treeplay.trace.survey.found import GONE, Container, Survey
from treeplay.values.place import How, Place


@dataclass(frozen=True, slots=True)
class Change:
    """What a place held before a trace and after it (`GONE` where there was nothing)."""

    place: Place
    before: Any
    after: Any
    is_blind: bool = False  # whether the program assigned the place and never read it before


class Contents:
    """What there was when this was made: `changes` lists what the program has changed since, `put_back` undoes it. Where others
    may have changed something too, `whose` tells them apart.

    `is_sealed`: no replay writes here, so a change is only told of."""

    def __init__(self, found: Survey, tensors: Iterable[torch.Tensor], *, is_sealed: bool = False) -> None:
        self._is_sealed = is_sealed
        self._sealed = found.sealed
        self._containers = [
            (container, found.container_places[key], bare(container)) for key, container in found.containers.items()
        ]
        self._cells = [(place, place.read_or(GONE)) for place, _ in found.cells]
        self._memory = MemoryBefore(found.memories, tensors)
        self._parts = PartsBefore(found)

    def changes(self, whose: Whose | None, unread: Collection[tuple[int, Any]] = ()) -> Iterator[Change]:
        """Every place that holds something else now. `unread`: entries that the program assigned and never read before."""
        for change in self._changes(whose, unread):
            yield _told(change) if self._is_sealed else change

    def put_back(self, whose: Whose | None) -> None:
        """Undo what the program has done."""
        undo, may_have_set = Teardown(), partial(_may_have_set, whose)
        # They run in reverse: containers first.
        undo.add("putting memory back", partial(self._memory.put_back, partial(_may_have_written, whose)))
        undo.add("putting parts back", partial(self._parts.put_back, may_have_set))
        undo.add("putting single values back", partial(each, self._cells, partial(_restore_cell, may_have_set)))
        undo.add("putting containers back", partial(each, self._containers, partial(_restore_container, whose)))
        undo.finish()

    def take_in(self, namespace: dict[str, Any]) -> None:
        """Note a namespace that the program is about to be given."""
        self._parts.take_in(namespace)

    def _changes(self, whose: Whose | None, unread: Collection[tuple[int, Any]]) -> Iterator[Change]:
        for container, place, before in self._containers:
            for change in _ours(whose, container, place, _compare(container, place, before)):
                if id(container) in self._sealed:
                    yield _told(change)
                    break
                is_blind = (id(container), change.place.key) in unread
                yield replace(change, is_blind=True) if is_blind else change
        for place in self._memory.changed(partial(_may_have_written, whose)):  # of which only the place is to be told
            yield Change(place, ShownText("what it held"), ShownText("something else"))
        for part in self._parts.changed(partial(_may_have_set, whose)):
            yield Change(*part)
        for place, content in self._cells:
            now = place.read_or(GONE)
            if now is not content and _may_have_set(whose, place, now):
                yield Change(place, content, now)


def _told(change: Change) -> Change:
    """A change that is only to be told: no replay can make it."""
    return Change(change.place, ShownText(shown(change.before)), ShownText(shown(change.after)))


def _may_have_written(whose: Whose | None, memory: Any) -> bool:
    return whose is None or whose.may_have_written(memory)


def _may_have_set(whose: Whose | None, place: Place, now: Any) -> bool:
    return whose is None or whose.may_have_set(place, now)


def _restore_cell(is_ours: Callable[[Place, Any], bool], place: Place, content: Any) -> None:
    now = place.read_or(GONE)
    if now is not content and is_ours(place, now):
        _remove(place) if content is GONE else place.write(content)


def _ours(whose: Whose | None, container: Any, place: Place, changes: Iterable[Change]) -> Iterator[Change]:
    if whose is None:
        yield from changes
        return
    for change in changes:
        at = change.place
        # A whole list tells by what is in it.
        after = bare(container) if at is place and not isinstance(container, dict) else change.after
        if whose.is_ours(container, at, list(after) if isinstance(after, (set, collections.deque)) else after):
            yield change


def _restore_container(whose: Whose | None, container: Any, place: Place, before: Any) -> None:
    """Undo what the program changed; what another thread did stays."""
    now: Any = bare(container)
    if _is_same(now, before):
        return
    changes = list(_compare(container, place, before))
    ours = list(_ours(whose, container, place, changes))
    if len(ours) == len(changes):
        fill(container, before)
    elif isinstance(now, dict):
        kept = {key: value for key, value in now.items() if key not in {change.place.key for change in ours}}
        put_back = {change.place.key: change.before for change in ours if change.before is not GONE}
        # The order of a dictionary is guarded like its entries.
        order = [
            *(key for key in before if key in kept or key in put_back),
            *(key for key in kept if key not in before),
        ]
        fill(container, {key: kept[key] if key in kept else put_back[key] for key in order})
    elif isinstance(now, (list, collections.deque)) and len(now) == len(before):
        base: Any = list if isinstance(now, list) else collections.deque
        # A change that is told of the container as a whole cannot be taken back item by item.
        for change in ours if all(change.place is not place for change in ours) else ():
            base.__setitem__(container, change.place.key, change.before)


def _is_same(now: Container, before: Container) -> bool:
    if len(now) != len(before):
        return False
    if isinstance(now, dict) and isinstance(before, dict):
        return all(a is b and now[a] is before[b] for a, b in zip(now, before, strict=True))
    if isinstance(now, set):
        return {id(item) for item in now} == {id(item) for item in before}
    return all(a is b for a, b in zip(now, before, strict=True))


def _remove(place: Place) -> None:
    match place.how:
        case How.ITEM:
            del place.holder[place.key]
        case How.CELL:
            del place.holder.cell_contents
        case How.SLOT:
            place.key.__delete__(place.holder)
        case _:
            delattr(place.holder, place.key)


def _moved(before: dict[Any, Any], found: dict[Any, Any]) -> set[Any]:
    """Keys that were taken out and put in again: from the first on that comes after one which it came before."""
    places = {key: at for at, key in enumerate(before)}
    order = [key for key in found if key in places]
    first = next((at for at in range(1, len(order)) if places[order[at]] < places[order[at - 1]]), len(order))
    return set(order[first:])


def _compare(container: Any, place: Place, before: Any) -> Iterator[Change]:
    found: Any = bare(container)
    if isinstance(found, dict):
        moved = _moved(before, found)
        stages = [(key, old, GONE if key in moved else found.get(key, GONE)) for key, old in before.items()]
        stages += [(key, GONE, new) for key, new in found.items() if key not in before or key in moved]
        for key, old, new in stages:
            if old is not new:
                # A tensor's text is its values.
                shown = key if isinstance(key, (str, int)) else f"<{type(key).__name__}>"
                yield Change(place.child(How.ITEM, container, key, f"{place}.{shown}"), old, new)
    elif len(found) != len(before):
        yield Change(place, ShownText(f"{len(before)} items"), ShownText(f"{len(found)} items"))
    elif isinstance(found, set):  # whose items have no places
        if not _is_same(found, before):
            yield Change(place, ShownText("these items"), ShownText("other items"))
    else:
        for index, (old, new) in enumerate(zip(before, found, strict=True)):
            if old is not new:
                yield Change(place.child(How.ITEM, container, index, f"{place}[{index}]"), old, new)

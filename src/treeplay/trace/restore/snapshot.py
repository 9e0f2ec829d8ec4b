"""Snapshot: what a trace might leave behind, taken before it, compared and put back after it.

Containers, closure cells, gradients, version counters and random state. Comparing gives the program's *slots*: the places
it rebinds on each call.
"""

from __future__ import annotations

import collections
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from treeplay.guards.reads.reads import Reads
from treeplay.observe.shown import ShownText
from treeplay.sandbox.interrupts import uninterrupted
from treeplay.sandbox.teardown import Teardown, each
from treeplay.torch_seam.autograd import set_version, version_of
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.flags import autocast_state, set_autocast_state
from treeplay.torch_seam.modes import DisableTorchFunctionSubclass
from treeplay.trace.restore.bare import bare, fill
from treeplay.trace.restore.line_of_change import line_of_change
from treeplay.trace.restore.memory import MemoryBefore
from treeplay.trace.restore.random_sources import RandomSources
from treeplay.trace.restore.whose import Whose
from treeplay.trace.run.gradients import Gradients
from treeplay.trace.survey.found import GONE, Container, Survey
from treeplay.values.kinds import is_a, is_leaf
from treeplay.values.location import Location
from treeplay.values.place import How, Place


@dataclass(frozen=True, slots=True)
class Change:
    """What a place held before a trace and after it (`GONE` where there was nothing)."""

    place: Place
    before: Any
    after: Any
    is_blind: bool = False  # whether the program assigned the place and never read it before


class Snapshot:
    """What there was before a trace; `changes()` lists what differs now, `restore()` puts it back."""

    unread: Collection[tuple[int, Any]] = ()
    """Attributes, as the dictionary that holds them and their name, that the program assigned and never read before."""
    assigned: Iterable[tuple[Place, Any]] = ()
    """Places that the program assigned what they held already."""
    whose: Whose | None = None
    """Who made the changes, once the run is over; None if nobody else can have."""
    reads: Reads | None = None  # of the run, where they are noted
    gradients_set: Collection[int] | None = None
    """Tensors whose gradient the program assigned, by `id`; None if that was not noted."""

    def __init__(self, found: Survey, arguments: Iterable[torch.Tensor]) -> None:
        self.found = found
        self._containers = [
            (container, found.container_places[key], bare(container)) for key, container in found.containers.items()
        ]
        self._cells = [(place, place.read_or(GONE)) for place, _ in found.cells]
        tensors: dict[int, torch.Tensor] = {id(tensor): tensor for tensor in arguments}
        tensors |= {id(value): value for value in found.kept if is_a(value, torch.Tensor)}
        with DisableTorchFunctionSubclass():
            self._grads = {id(tensor): (tensor, tensor.grad) for tensor in tensors.values() if is_leaf(tensor)}
            self.gradients = Gradients(self._grads)
            tensors |= {id(grad): grad for _, grad in self._grads.values() if grad is not None}
            # Autograd counts up the versions of handles, to whose memory nothing is written.
            self._versions = [(tensor, version_of(tensor)) for tensor in tensors.values()]
        self._grad_mode = torch.is_grad_enabled()
        self._autocast = autocast_state()
        self._random = RandomSources(found.kept)
        self._memory = MemoryBefore(found.memories, tensors.values())

    def line_of_change(self, place: Place) -> Location | None:
        """The user's line that changed what is in a place; None where that is not known."""
        return line_of_change(place, self.reads) if self.reads is not None else None

    def changes(self) -> Iterator[Change]:
        """Every place that holds something else now, and those that were assigned the same again."""
        for place, value in self.assigned:
            if place.read_or(GONE) is value:
                yield Change(place, value, value)
        for container, place, before in self._containers:
            for change in self._ours(container, place, _compare(container, place, before)):
                if id(container) in self.found.sealed:
                    yield replace(change, before=ShownText("what it held"), after=ShownText("something else"))
                    break
                is_blind = (id(container), change.place.key) in self.unread
                yield replace(change, is_blind=True) if is_blind else change
        for place in self._memory.changed(self._may_have_written):
            yield Change(place, ShownText("what it held"), ShownText("something else"))
        for place, content in self._cells:
            now = place.read_or(GONE)
            if now is not content and (self.whose is None or self.whose.may_have_set(place, now)):
                yield Change(place, content, now)
        with DisableTorchFunctionSubclass():
            ours = [item for item in self._grads.values() if self._is_our_gradient(*item)]
            grads = [(tensor, grad, tensor.grad) for tensor, grad in ours]
        for tensor, old, now in grads:
            owner = self.found.tensor_at(tensor)
            label = f"{owner[0] if owner else 'argument'}.grad"
            yield Change(Place(How.GRAD, tensor, None, owner[0] if owner else None, label), old, now)

    def stored(self) -> list[Any]:
        """What is now in the places that hold something else."""
        return [change.after for change in self.changes()]

    def random_source_used(self) -> str | None:
        """The name of a random generator of Python or NumPy that moved, or None."""
        return self._random.moved(self._may_have_drawn)

    def had_no_grad(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is a leaf that had no gradient."""
        return self._grads.get(id(tensor), (None, tensor))[1] is None

    def grad_mode_changed(self) -> bool:
        """Whether the program left the grad mode other than it found it."""
        return torch.is_grad_enabled() != self._grad_mode

    def autocast_changed(self) -> bool:
        """Whether the program left autocast other than it found it."""
        return autocast_state() != self._autocast

    @uninterrupted
    def restore(self, *, versions: bool = True) -> None:
        """Put everything back as it was, `versions` of tensors too unless they were written; safe to call more than once."""
        undo = Teardown()
        # They run in reverse: containers first.
        undo.add("putting random generators back", partial(self._random.restore, self._may_have_drawn))
        undo.add("putting memory back", partial(self._memory.put_back, self._may_have_written))
        undo.add("putting modes back", self._restore_modes)
        undo.add("putting versions back", partial(self._restore_versions, versions=versions))
        undo.add("putting gradients back", partial(each, self._grads.values(), self._restore_gradient))
        undo.add("putting single values back", partial(each, self._cells, self._restore_cell))
        undo.add("putting containers back", partial(each, self._containers, self._put_back))
        error = undo.run()
        if error is not None:
            raise error

    def _restore_cell(self, place: Place, content: Any) -> None:
        now = place.read_or(GONE)
        if now is not content and (self.whose is None or self.whose.may_have_set(place, now)):
            _remove(place) if content is GONE else place.write(content)

    def _restore_gradient(self, tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
        with DisableTorchFunctionSubclass():
            if self._is_our_gradient(tensor, grad):
                tensor.grad = self.gradients.after(tensor, grad)

    def _restore_versions(self, *, versions: bool) -> None:
        with DisableTorchFunctionSubclass():
            for tensor, version in self._versions if versions else ():
                set_version(tensor, version)

    def _restore_modes(self) -> None:
        torch.set_grad_enabled(self._grad_mode)
        if self.autocast_changed():
            set_autocast_state(self._autocast)

    def _ours(self, container: Any, place: Place, changes: Iterable[Change]) -> Iterator[Change]:
        whose = self.whose
        if whose is None:
            yield from changes
            return
        for change in changes:
            at = change.place
            # A whole list tells by what is in it.
            after = bare(container) if at is place and not isinstance(container, dict) else change.after
            if whose.is_ours(container, at, list(after) if isinstance(after, (set, collections.deque)) else after):
                yield change

    def _put_back(self, container: Any, place: Place, before: Any) -> None:
        """Undo what the program changed; what another thread did stays."""
        now: Any = bare(container)
        if _is_same(now, before):
            return
        changes = list(_compare(container, place, before))
        ours = list(self._ours(container, place, changes))
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

    def _is_our_gradient(self, tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
        now = tensor.grad
        if now is before:
            return False
        if self.whose is None or isinstance(now, FakeTensor):
            return True
        if self.gradients_set is not None:
            return id(tensor) in self.gradients_set
        return not self.gradients.is_others(tensor, now) and self.whose.may_have_set_gradients()

    def _may_have_written(self, memory: Any) -> bool:
        return self.whose is None or self.whose.may_have_written(memory)

    def _may_have_drawn(self, source: Any) -> bool:
        return self.whose is None or self.whose.may_have_drawn(source)


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

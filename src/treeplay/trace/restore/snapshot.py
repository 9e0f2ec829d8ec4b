"""Snapshot: what a trace might leave behind, taken before it, compared and put back after it.

What is in containers and other places (`contents`), gradients, version counters and random state. Comparing gives the program's
*slots*: the places it rebinds on each call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from types import CodeType, ModuleType
from typing import Any

import torch

from treeplay.guards.reads.names import strings_within
from treeplay.guards.reads.reads import WHOLE, Reads
from treeplay.sandbox.interrupts import uninterrupted
from treeplay.sandbox.teardown import Teardown, each
from treeplay.torch_seam.autograd import set_version, version_of
from treeplay.torch_seam.fakes import FakeTensor
from treeplay.torch_seam.flags import autocast_state, set_autocast_state
from treeplay.torch_seam.modes import DisableTorchFunction, DisableTorchFunctionSubclass
from treeplay.trace.restore.contents import Change, Contents
from treeplay.trace.restore.line_of_change import line_of_change
from treeplay.trace.restore.line_of_draw import line_of_draw
from treeplay.trace.restore.random_sources import RandomSources
from treeplay.trace.restore.whose import Whose
from treeplay.trace.run.gradients import Gradients
from treeplay.trace.survey.found import GONE, Survey
from treeplay.trace.survey.program import survey_late
from treeplay.values.kinds import is_a, is_leaf
from treeplay.values.location import Location
from treeplay.values.place import How, Place


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
        self._known: set[int] = set()  # what was found, by `id`
        self._contents = [Contents(found, tensors.values())]

    def take_in(self, module: ModuleType, name: str, code: CodeType) -> None:
        """Note what a module has under a name that `code` asks it for, before the program is given it, where that is not
        among what the survey found. No replay writes there."""
        if name == WHOLE:
            self._contents[0].take_in(vars(module))
            return
        self._known = self._known or {id(value) for value in self.found.kept}
        with DisableTorchFunction():
            late = survey_late(vars(module), name, self._known, strings_within(code))
            if late.containers or late.cells or late.memories:
                self.found.sealed |= late.containers.keys()
                self._known |= {id(value) for value in late.kept}
                tensors = [value for value in late.kept if is_a(value, torch.Tensor)]
                self._contents.append(Contents(late, tensors, is_sealed=True))

    def line_of_change(self, place: Place) -> Location | None:
        """The user's line that changed what is in a place; None where that is not known."""
        return line_of_change(place, self.reads) if self.reads is not None else None

    def changes(self) -> Iterator[Change]:
        """Every place that holds something else now, and those that were assigned the same again."""
        for place, value in self.assigned:
            if place.read_or(GONE) is value:
                yield Change(place, value, value)
        for contents in self._contents:
            yield from contents.changes(self.whose, self.unread)
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

    def mark_random_sources(self) -> None:
        """Have seeding be noticed also where it changes nothing: before the run, and only where no other thread draws."""
        self._random.mark()

    def random_source_used(self) -> tuple[str, Location | None] | None:
        """The name of a random generator of Python or NumPy that moved, and the user's line if that is known."""
        moved = self._random.moved(self._may_have_drawn)
        if moved is None:
            return None
        return moved[0], line_of_draw(moved[1], self.reads) if self.reads is not None else None

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
        # They run in reverse: contents first.
        undo.add("putting random generators back", partial(self._random.restore, self._may_have_drawn))
        undo.add("putting modes back", self._restore_modes)
        undo.add("putting versions back", partial(self._restore_versions, versions=versions))
        undo.add("putting gradients back", partial(each, self._grads.values(), self._restore_gradient))
        for contents in self._contents:  # what was noted later first, as it was when the rest had changed already
            undo.add("putting contents back", partial(contents.put_back, self.whose))
        undo.finish()

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

    def _is_our_gradient(self, tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
        now = tensor.grad
        if now is before:
            return False
        if self.whose is None or isinstance(now, FakeTensor):
            return True
        if self.gradients_set is not None:
            return id(tensor) in self.gradients_set
        return not self.gradients.is_others(tensor, now) and self.whose.may_have_set_gradients()

    def _may_have_drawn(self, source: Any) -> bool:
        return self.whose is None or self.whose.may_have_drawn(source)

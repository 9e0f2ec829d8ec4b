"""What a traced run does in checkpoints: eager does it once more in the backward, with what it finds by then.

checkpoint(lambda y: a(y) * t, x)     ─▶  read: the memory of a's weights, of t and of x
t.add_(1)                             ─▶  changed: the backward would compute with another t
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

import torch

from treeplay.torch_seam.checkpoints import checkpoints_around, is_drawn_anew, restores_what_it_kept, variables_of
from treeplay.values.location import Location
from treeplay.values.which import getter_of

Noted = tuple[Any, Location | None]
"""An operator, and the user's line."""


class Checkpointed:
    """Notes of a trace, each of the first operator of its kind: one has `written` in a checkpoint what was there before,
    `drawn` there from a generator that is not put back, or `changed` what a checkpoint had read. `read` are the fake storages
    of what was there before a checkpoint that reads it."""

    def __init__(self) -> None:
        self.written: Noted | None = None
        self.drawn: Noted | None = None
        self.changed: Noted | None = None
        self.read: set[int] = set()
        self._writes: dict[int, Noted] = {}  # by fake storage, outside of checkpoints
        # Weakly: they hold the program's tensors. By fake storage the innermost checkpoint in which it was made, and each that
        # was around an operator, with the first such and what the variables of its function were then.
        self._made: dict[int, weakref.ref[Callable[..., Any]]] = {}
        self._around: dict[weakref.ref[Callable[..., Any]], tuple[Noted, list[Callable[[], Any]]]] = {}

    def note(self, given: Iterable[int], made: Iterable[int], noted: Noted) -> None:
        """Note an operator that was given some fake storages and has made others."""
        around = checkpoints_around()
        if not around:
            return
        for hook in around:
            if (key := weakref.ref(hook)) not in self._around:
                self._around[key] = noted, [*map(_getter, variables_of(hook))]
        innermost, before = weakref.ref(around[0]), {*given}
        self.read.update(storage for storage in before if self._made.get(storage) is not innermost)
        for storage in made:
            if storage not in before:
                self._made[storage] = innermost

    def note_write(self, storage: int, noted: Noted) -> None:
        """Note a write to a fake storage."""
        around = checkpoints_around()
        is_own = bool(around) and self._made.get(storage) is weakref.ref(around[0])
        if around and not is_own:
            self.written = self.written or noted
        if storage in self.read:
            self.changed = self.changed or noted
        if not is_own:
            self._writes.setdefault(storage, noted)

    def note_draw(self, generator: torch.Generator, noted: Noted) -> None:
        """Note a draw from a generator."""
        if is_drawn_anew(generator):
            self.drawn = self.drawn or noted

    def moved(self, inputs: Set[int]) -> Noted | None:
        """A write to one of these storages that a checkpoint reads, be it before or after: the version of the tensor does not
        tell then whether the caller has written to it since."""
        return next((self._writes[storage] for storage in self._writes if storage in self.read & inputs), None)

    def contexts(self) -> Noted | None:
        """The first operator in a checkpoint that computes again in a context of its own, or raises then."""
        return next((noted for hook, noted, _ in self._living() if not restores_what_it_kept(hook)), None)

    def rebound(self) -> Noted | None:
        """The first operator in a checkpoint whose function uses a variable that the program has set since."""
        return next((noted for hook, noted, before in self._living() if not _are(variables_of(hook), before)), None)

    def _living(self) -> Iterator[tuple[Callable[..., Any], Noted, list[Callable[[], Any]]]]:
        for reference, (noted, variables) in self._around.items():
            if (hook := reference()) is not None:
                yield hook, noted, variables


_NOTHING = object()


def _getter(value: Any) -> Callable[[], Any]:
    return getter_of(_NOTHING if value is None else value)  # what has gone is None


def _are(values: list[Any], before: list[Callable[[], Any]]) -> bool:
    """Whether these are the very values that there were."""
    return len(values) == len(before) and all(
        get() is (_NOTHING if value is None else value) for value, get in zip(values, before, strict=True)
    )

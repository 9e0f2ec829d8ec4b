"""Which of some objects are in a value: told alike of values of one structure, so that two calls can be compared."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from treeplay.values.kinds import PLAIN, is_a, items, table_of
from treeplay.values.records import held_in_record, is_record
from treeplay.values.same import components

_GOES_BY_ITEMS = (list, tuple, set, frozenset, deque)


def which_in(value: Any, given: Sequence[Any]) -> tuple[int, ...]:
    """For each object in `value` of a class that is among these, which of them it is, or -1; as they come, each once."""
    by_id = {id(one): at for at, one in enumerate(given)}
    classes = {type(one) for one in given}
    found: list[int] = []
    waiting, seen = [value], set[int]()
    while waiting:
        part = waiting.pop()
        if type(part) in PLAIN or id(part) in seen or is_a(part, (torch.Tensor, type)):
            continue
        seen.add(id(part))
        if type(part) in classes:
            found.append(by_id.get(id(part), -1))
        if is_a(part, dict):
            waiting += [*dict.keys(part), *dict.values(part)]
        elif is_a(part, _GOES_BY_ITEMS):
            waiting += items(part)
        if is_record(part):
            waiting += [held for _, held in held_in_record(part)]
        elif not is_a(part, (torch.nn.Module, torch.optim.Optimizer)):
            waiting += (table_of(part) or {}).values()
    return tuple(found)


def held_in_keys(keys: Iterable[Any]) -> dict[int, Any]:
    """These keys by their `id`, and what is in them that may tell them from others: in tuples and other values, and in objects
    of classes that have a hash of their own."""
    found: dict[int, Any] = {}
    waiting = [*keys]
    while waiting:
        part = waiting.pop()
        if type(part) in PLAIN or id(part) in found:
            continue
        found[id(part)] = part
        held = components(part)
        if held is not None:
            waiting += held
        elif is_a(part, _GOES_BY_ITEMS):
            waiting += items(part)
        elif hasattr(type(part).__hash__, "__code__") and not is_a(part, (torch.Tensor, type)):
            waiting += [value for _, value in held_in_record(part)]
    return found


def getter_of(value: Any) -> Callable[[], Any]:
    """What gives an object back, None once it is gone; one that has no weak references is kept."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


class Living(set[int]):
    """The `id` of each of some objects as long as it is there: the address of one that is gone may be another's. Of one without
    weak references nobody tells when it goes: it is kept. A guard that goes over from it to another one says so."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Any] = {}  # a weak reference to each, or the object itself

    def note(self, value: Any) -> None:
        """Add an object."""
        if id(value) in self:
            return
        try:
            self.kept[id(value)] = weakref.ref(value, partial(_forget, weakref.ref(self), id(value)))
        except TypeError:
            self.kept[id(value)] = value
        self.add(id(value))

    def go_over(self, before: Any, now: Any) -> None:
        """A guard holds another object from now on: the one before is nowhere else."""
        self.lose(id(before))
        self.note(now)

    def lose(self, at: int) -> None:
        """Forget the object with this `id`."""
        self.discard(at)
        self.kept.pop(at, None)

    def clear(self) -> None:
        """Forget all of them."""
        super().clear()
        self.kept.clear()


def _forget(living: weakref.ref[Living], at: int, _: Any) -> None:
    found = living()
    if found is not None:
        found.lose(at)

"""What may be in a place that a replay itself fills: the like of what was there when it was recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch

from treeplay.torch_seam.tensors import unusual
from treeplay.values.kinds import is_a, table_of
from treeplay.values.same import is_same

Ways: TypeAlias = "Mapping[Any, Ways | None]"
"""The keys and indices that lead to numbers in a container which are inputs: each call checks these by itself. What follows a
key is under it; None where it leads to a number."""
NO_WAYS: Ways = MappingProxyType({})


class Elsewhere(NamedTuple):
    """What is not in the slots that a replay fills, by `id`: objects of which something is `read`, and those `staying` in other
    places, each with whether a replay writes into it."""

    read: Set[int]
    staying: dict[int, bool]

    def go_over(self, before: Any, now: Any) -> None:
        """Note that a container is in the place of another one."""
        if id(before) in self.staying:
            self.staying[id(now)] = self.staying.pop(id(before))


def are_alike(elsewhere: Elsewhere, before: Any, found: Any, ways: Ways | None = NO_WAYS) -> bool:
    """Whether a slot that the recording itself fills holds what it put there, or the like."""
    if is_a(before, torch.Tensor):
        return is_like(before)(found)
    if type(before) is not type(found):
        return False
    if ways is None:
        return True
    if not isinstance(before, (list, tuple, dict)):
        return is_same(before, found) or _are_like_objects(elsewhere, before, found)
    if before is not found and elsewhere.staying.get(id(found)):  # what a replay writes there would be read here
        return False
    keys: Sequence[Any] = range(len(before))
    if isinstance(before, dict):
        keys = [*before]
        if keys != [*found]:
            return False
        before, found = [*before.values()], [*found.values()]
    if len(before) != len(found) or _which_are_one(before) != _which_are_one(found):
        return False
    below = map(ways.get, keys, repeat(NO_WAYS)) if ways else repeat(NO_WAYS)
    return all(map(are_alike, repeat(elsewhere), before, found, below))


def _are_like_objects(elsewhere: Elsewhere, before: Any, found: Any) -> bool:
    """Whether two objects of a class hold the like, as those do that a program makes in each call. Not one of which something
    is read elsewhere: the recording would go on to read it there."""
    attributes, others = table_of(before), table_of(found)
    try:
        return (
            attributes is not None
            and others is not None
            and all({id(before), id(attributes)}.isdisjoint(objects) for objects in elsewhere)
            and are_alike(elsewhere, attributes, others)
        )
    except RecursionError:  # one that leads to itself, which no program makes that is recorded
        return False


def _which_are_one(values: Sequence[Any]) -> list[int]:
    """Of each tensor and container among these, which one it is, in the order in which they come first."""
    numbers: dict[int, int] = {}
    ids = (id(value) for value in values if is_a(value, (torch.Tensor, list, dict, set)))
    return [numbers.setdefault(at, len(numbers)) for at in ids]


def check_of_slot(recorded: Any, elsewhere: Elsewhere, ways: Ways = NO_WAYS) -> Callable[[Any], bool]:
    """Whether what is found in a slot is alike what was recorded, and none of the objects in other places: the program could
    tell that they are one."""
    alike = (
        is_like(recorded)
        if is_a(recorded, torch.Tensor)
        else functools.partial(are_alike, elsewhere, recorded, ways=ways)
    )
    staying = elsewhere.staying
    return lambda found: alike(found) and id(found) not in staying


def is_like(recorded: torch.Tensor) -> Callable[[Any], bool]:
    """Whether a value is a tensor of the class, type and shape of `recorded`: what a replay puts in the place of it."""
    if recorded.layout is not torch.strided:
        return lambda value: value is recorded
    cls, facts = type(recorded), _facts_of(recorded)

    def is_like_it(value: Any) -> bool:
        # Its class first: one of the user's may do anything when it is asked.
        return type(value) is cls and value.layout is torch.strided and _facts_of(value) == facts

    return is_like_it


def _facts_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride(), tensor.requires_grad


def check_of_plain(recorded: torch.Tensor) -> Callable[[Any], bool]:
    """Whether a value may be instead of a plain tensor that no operator read: what can be asked of one is the same of both."""
    alike, is_inference = is_like(recorded), recorded.is_inference()

    def may_replace(value: Any) -> bool:
        return alike(value) and not vars(value) and unusual(value) is None and value.is_inference() == is_inference

    return may_replace

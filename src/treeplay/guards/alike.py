"""When one value is the like of another, so that a replay may have put it there. `patterns.py` tells of whole slots."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch

from treeplay.torch_seam.tensors import unusual
from treeplay.values.kinds import is_a, table_of
from treeplay.values.same import is_same

Ways: TypeAlias = "Mapping[Any, Ways | None]"
"""The keys, indices and attributes that lead to numbers in a container or record which are inputs: each call checks these by
itself. What follows a key is under it; None where it leads to a number."""
NO_WAYS: Ways = MappingProxyType({})


class Elsewhere(NamedTuple):
    """What is not in the slots that a replay fills, by `id`: objects of which something is `read`, and those `staying` in other
    places, each with whether a replay writes into it.

    `opened`: records in the slots of which what they hold counts, and not which they are; `met`: all other objects that the run
    met, any of which it may have asked whether it is one of them. `has_weak`: whether it met weak references, by which it may
    have asked, too. `inputs`: tensors that are inputs."""

    read: Set[int]
    staying: dict[int, bool]
    opened: Set[int] = frozenset()
    met: Set[int] = frozenset()
    inputs: Set[int] = frozenset()
    has_weak: bool = False

    def go_over(self, before: Any, now: Any) -> None:
        """Note that a container is in the place of another one."""
        if id(before) in self.staying:
            self.staying[id(now)] = self.staying.pop(id(before))


def are_alike(elsewhere: Elsewhere, before: Any, found: Any) -> bool:
    """Whether a value may be instead of another: the same, an object of which nothing was read that holds the like, or what
    such an object holds."""
    if is_a(before, torch.Tensor):
        return is_like(before)(found)
    if type(before) is not type(found):
        return False
    if not isinstance(before, (list, tuple, dict)):
        return is_same(before, found) or _are_like_objects(elsewhere, before, found)
    if before is not found and elsewhere.staying.get(id(found)):  # what a replay writes there would be read here
        return False
    if isinstance(before, dict):
        if [*before] != [*found]:
            return False
        before, found = [*before.values()], [*found.values()]
    if len(before) != len(found):
        return False
    ours, others = (
        [id(value) for value in values if is_a(value, (torch.Tensor, list, dict, set))] for values in (before, found)
    )
    is_alike = which_are_one(ours) == which_are_one(others)
    return is_alike and all(are_alike(elsewhere, *pair) for pair in zip(before, found, strict=True))


def _are_like_objects(elsewhere: Elsewhere, before: Any, found: Any) -> bool:
    """Whether two objects of a class hold the like, as those do that a program makes in each call. Not one of which something
    is read elsewhere: the recording would go on to read it there."""
    attributes, others = table_of(before), table_of(found)
    try:
        return (
            attributes is not None
            and others is not None
            and all({id(before), id(attributes)}.isdisjoint(objects) for objects in (elsewhere.read, elsewhere.staying))
            and are_alike(elsewhere, attributes, others)
        )
    except RecursionError:  # one that leads to itself, which no program makes that is recorded
        return False


def which_are_one(met: Iterable[int]) -> list[int]:
    """Of each object among these, by its `id`, which one it is, in the order in which they come first."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(at, len(numbers)) for at in met]


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

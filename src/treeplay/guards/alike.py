"""What may be in a place that a replay itself fills: the like of what was there when it was recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence, Set
from typing import Any

import torch

from treeplay.torch_seam.tensors import unusual
from treeplay.values.kinds import is_a, table_of
from treeplay.values.same import is_same

Ways = frozenset[tuple[Any, ...]]
"""The keys and indices that lead to numbers in a container which are inputs: each call checks these by itself."""
NO_WAYS: Ways = frozenset()


def below(ways: Ways, key: Any) -> Ways:
    """The rest of those ways that begin with a key."""
    return frozenset(way[1:] for way in ways if way[:1] == (key,)) if ways else ways


def are_alike(read: Set[int], before: Any, found: Any, ways: Ways = NO_WAYS) -> bool:
    """Whether a slot that the recording itself fills holds what it put there, or the like."""
    if is_a(before, torch.Tensor):
        return is_like(before)(found)
    if type(before) is not type(found):
        return False
    if () in ways:
        return True
    if isinstance(before, (list, tuple)):
        is_as_long = len(before) == len(found) and _which_are_one(before) == _which_are_one(found)
        pairs = zip(before, found, strict=False)
        if not ways:
            return is_as_long and all(are_alike(read, *pair) for pair in pairs)
        return is_as_long and all(are_alike(read, *pair, below(ways, at)) for at, pair in enumerate(pairs))
    if isinstance(before, dict):
        by_index = frozenset((at, *way) for at, key in enumerate(before) for way in below(ways, key)) if ways else ways
        return list(before) == list(found) and are_alike(read, [*before.values()], [*found.values()], by_index)
    return is_same(before, found) or _are_like_objects(read, before, found)


def _are_like_objects(read: Set[int], before: Any, found: Any) -> bool:
    """Whether two objects of a class hold the like, as those do that a program makes in each call. Not one of which something
    is `read`: the recording would go on to read it there."""
    attributes, others = table_of(before), table_of(found)
    try:
        return (
            attributes is not None
            and others is not None
            and {id(before), id(attributes)}.isdisjoint(read)
            and are_alike(read, attributes, others)
        )
    except RecursionError:  # one that leads to itself, which no program makes that is recorded
        return False


def _which_are_one(values: Sequence[Any]) -> list[int]:
    """Of each tensor and container among these, where it is first."""
    ids = [id(value) for value in values if is_a(value, (torch.Tensor, list, dict, set))]
    return list(map(ids.index, ids))


def check_of_slot(recorded: Any, staying: Set[int], read: Set[int], ways: Ways = NO_WAYS) -> Callable[[Any], bool]:
    """Whether what is found in a slot is alike what was recorded, and none of the objects in other places, by their `id`: the
    program could tell that they are one."""
    alike = (
        is_like(recorded)
        if is_a(recorded, torch.Tensor)
        else functools.partial(are_alike, read | staying, recorded, ways=ways)
    )
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

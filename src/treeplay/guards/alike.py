"""What may be in a place that a replay itself fills: the like of what was there when it was recorded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from treeplay.values.kinds import is_a
from treeplay.values.same import is_same


def are_alike(before: Any, found: Any) -> bool:
    """Whether a slot that the recording itself fills holds what it put there, or the like."""
    if is_a(before, torch.Tensor):
        return is_like(before)(found)
    if type(before) is not type(found):
        return False
    if isinstance(before, (list, tuple)):
        return len(before) == len(found) and all(map(are_alike, before, found))
    if isinstance(before, dict):
        return list(before) == list(found) and all(map(are_alike, before.values(), found.values()))
    return is_same(before, found)


def check_of_slot(recorded: Any) -> Callable[[Any], bool]:
    """`are_alike`, with what was recorded."""
    return is_like(recorded) if isinstance(recorded, torch.Tensor) else functools.partial(are_alike, recorded)


def is_like(recorded: torch.Tensor) -> Callable[[Any], bool]:
    """Whether a value is a tensor of the class, type and shape of `recorded`: what a replay puts in the place of it."""
    if recorded.layout is not torch.strided:
        return lambda value: value is recorded
    facts = (type(recorded), recorded.dtype, recorded.shape, recorded.requires_grad)

    def is_like_it(value: Any) -> bool:
        return isinstance(value, torch.Tensor) and (type(value), value.dtype, value.shape, value.requires_grad) == facts

    return is_like_it

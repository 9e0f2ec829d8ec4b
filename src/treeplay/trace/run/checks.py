"""Checks that torch makes on the host, as a recording can have them: values that do not pass still fail, and nobody waits.

one_hot(x, 3)            ▶   look-ups in a table of three, which fail out of range; torch asks the host for the largest class
x[p] = y                 ▶   x.index_put_((p,), y), in `positions`
if not is_all_true(v):   ▶   _assert_async(v), in the code by which a distribution validates its arguments and samples
    raise ValueError

An assertion that fails in a replay takes the call back, and the program itself runs and raises its own exception. On a GPU a
failed assertion would end the use of the device, so that `plan.answers` makes a result of what a distribution asserts there.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.distributions import Distribution, Geometric, constraints
from torch.nn import functional as F

from treeplay.guards.reads.machinery import is_machinery
from treeplay.torch_seam.operators import assert_async, is_all_true
from treeplay.trace.run.positions import set_item

VALIDATES = "a distribution was given values that it does not take"
"""The message of an assertion in the place of a distribution's check."""
ADVICE = (
    "pass validate_args=False to it, or call torch.distributions.Distribution.set_default_validate_args(False) once"
)
_torchs: Any = F.one_hot
_ASKS: Any = (is_all_true, torch.Tensor.all)
_VALIDATES = frozenset(
    inspect.unwrap(function).__code__
    for function in (Distribution.__init__, Distribution._validate_sample, Geometric.__init__)
)
_CONSTRAINTS = frozenset(  # which ask for themselves whether a matrix is square and symmetric
    vars(base)["check"].__code__ for base in type(constraints.positive_definite).__mro__ if "check" in vars(base)
)


def checked_by_operators(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function to call for a torch function in a trace: the function itself for all but a few."""
    if function is _torchs:
        return _one_hot
    if function is torch.Tensor.__setitem__:
        return set_item
    if function in _ASKS and is_validation():
        return functools.partial(_all_true, function)
    return function


def is_validation() -> bool:
    """Whether the code that calls a torch function is that by which a distribution validates values."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (is_machinery(frame.f_code.co_filename) or frame.f_code in _CONSTRAINTS):
        frame = frame.f_back
    return frame is not None and frame.f_code in _VALIDATES


def _all_true(function: Callable[..., Any], valid: torch.Tensor, *dims: Any, **options: Any) -> Any:
    found = function(valid, *dims, **options)
    if found is True or dims or options:  # asked already, through another mode; or it is one more step to the answer
        return found
    if found.device.type != "cpu":
        torch.ops.aten._assert_async.msg(found, VALIDATES)
        return True
    assert_async(found)
    return True


def _one_hot(tensor: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes < 1:  # as many as the values say, or an error
        whole: torch.Tensor = _torchs(tensor, num_classes)
        return whole
    classes = torch.arange(num_classes, device=tensor.device)
    return (F.embedding(tensor, classes.unsqueeze(-1)) == classes).to(torch.int64)  # the look-up fails out of range

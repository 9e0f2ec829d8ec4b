"""Operators that are made of others: those without a kernel under inference mode, where they arrive whole (in any other mode
they do not), and those whose kernels call others, under autocast.

    einsum(x, w)       ─▶    permute(x), permute(w), bmm     of casts of both under autocast
    linear(x, w, b)    ─▶    t(w), reshape(x), mm, add       where `w` needs a gradient
                             t(w), bmm, add                  where it does not
    _trilinear(x, w)   ─▶    bmm, ...                        of casts under autocast

Called whole by a mode that watches, or by a replay, such an operator would do otherwise than where nobody watches: no autocast
is between it and the others, no conjugate is resolved, and no view of a parameter tells that it needs a gradient, by which the
others are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.observe.lines import user_location
from treeplay.torch_seam.casts import is_cast_inside, note_casts
from treeplay.torch_seam.fakes import ask_rules_anew, device_of, fake_mode_of
from treeplay.torch_seam.modes import TorchDispatchMode
from treeplay.torch_seam.operators import by_others, is_by_others_alone, is_made_of_others, operator_name
from treeplay.torch_seam.schemas import MAKES_ZEROS, leaves_of, returns_view


def taken_apart(mode: TorchDispatchMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The results of an operator by those that it is made of, which `mode` sees; NotImplemented if it stays whole."""
    is_wanted = is_by_others_alone(func) if is_cast_inside(func) else _arrives_whole(func, args, kwargs)
    if not is_wanted:
        return NotImplemented
    with mode:  # entered anew: inside of `__torch_dispatch__` it is off
        return by_others(func, args, kwargs)


def why_not_taken_apart(func: Any) -> tuple[str, str] | None:
    """Why an operator can be recorded neither whole nor by others, and what to do instead."""
    if not is_cast_inside(func) or is_by_others_alone(func):
        return None
    why = "computes with other operators inside of its kernel, which autocast casts and a recording would not"
    return why, "call it where autocast is off, with arguments and weights of the dtype to compute in"


class TakesApart(TorchDispatchMode):
    """For a block that torch traces, whose own tracing leaves what kernels call to them, without autocast."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        note_casts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is MAKES_ZEROS:
            ask_rules_anew(fake_mode_of(()))
        if not is_cast_inside(func):
            return func(*args, **(kwargs or {}))
        if (unfit := why_not_taken_apart(func)) is not None:
            raise Refusal.of(operator_name(func), *unfit, user_location())
        with self:
            return by_others(func, args, kwargs or {})


def _arrives_whole(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator is one that would not arrive in another mode. What gives a view stays whole: it may not give one that
    another operator has made."""
    if not torch.is_inference_mode_enabled() or returns_view(func):
        return False
    devices = {device_of(leaf).type for leaf in leaves_of((args, kwargs)) if isinstance(leaf, torch.Tensor)}
    return bool(devices) and all(is_made_of_others(func, device) for device in devices)

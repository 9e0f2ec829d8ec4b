"""What cannot be done with tensors made of other tensors: refused at the trace, with the reason."""

from __future__ import annotations

from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.torch_seam.modes import is_wrapper
from treeplay.wrap.aot.plan.subclasses import plain_parts
from treeplay.wrap.aot.tracing.findings import refusal_to_wrap

_WHY = {
    "Metadata mutations": (
        "write",
        "the shape of an argument that is made of other tensors changes in place",
        "return the reshaped tensor instead",
    ),
    "duplicate inputs that are mutated": (
        "write",
        "one tensor made of others is given twice, and it is written",
        "pass it once, or write to a clone",
    ),
    "two graph outputs": (
        "view",
        "two results share memory, and there are tensors made of other tensors among arguments or results",
        "return a clone of one of them",
    ),
}
"""What torch's tracing raises for tensors made of others, and what it means to a user."""


def in_user_terms(refused: Refusal) -> Refusal:
    """A refusal in the user's terms, where torch's tracing raised it in its own."""
    for part, (op, why, advice) in _WHY.items():
        if part in refused.reason.why:
            return refusal_to_wrap(op, why, refused.reason.where, advice)
    return refused


def refuse_unsupported_view(base: Any, view: Any, result: int) -> None:
    """Refuse a view of a wrapper that cannot be taken again by its layout alone, because its parts lie otherwise."""
    if not (is_wrapper(base) or is_wrapper(view)):
        return
    try:
        with torch.no_grad():
            again = base.as_strided(view.size(), view.stride(), view.storage_offset())
        is_same = _shape(again) == _shape(view)
    except Exception:  # the class does whatever it wants
        is_same = False
    if not is_same:
        why = f"result {result} is a view of a {type(base).__name__}, and its parts do not lie as the whole does"
        raise refusal_to_wrap("view", why, None, "return a clone of the view")


def _shape(tensor: Any) -> Any:
    """All that tells two wrappers apart but their numbers."""
    context = tensor.__tensor_flatten__()[1] if is_wrapper(tensor) else None
    parts = [(part.size(), part.stride(), part.storage_offset(), part.dtype) for part in plain_parts(tensor)]
    return type(tensor), context, parts

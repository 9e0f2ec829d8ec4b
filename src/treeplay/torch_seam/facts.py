"""What a program may ask of a tensor besides what its spec says: where it begins, whether it is a view, its place in autograd.

A trace answers as the tensor of its call would; a recording serves calls in which the answers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from treeplay.torch_seam.tensors import TensorBase, has_strides
from treeplay.values.spec import TensorSpec

_ATTRIBUTES: Mapping[str, Any] = vars(TensorBase)


@dataclass(frozen=True, slots=True)
class Fact:
    """One such question. `code` asks it of the tensor `{}`, and the answer is compared by its value.

    `is_of_history`: there is only one answer for a tensor that needs no gradient, and for a parameter."""

    name: str
    code: str
    is_of_history: bool = False
    ask: Callable[[torch.Tensor], Any] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ask", eval(f"lambda tensor: {self.code.format('tensor')}"))

    def may_differ(self, tensor: torch.Tensor) -> bool:
        """Whether another tensor of this one's spec and class may have another answer."""
        return not self.is_of_history or (tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter))


_OF_PROPERTIES = (
    Fact("is_leaf", "{}.is_leaf", is_of_history=True),
    Fact("grad_fn", "type({}.grad_fn)", is_of_history=True),
    Fact("output_nr", "{}.output_nr", is_of_history=True),
    Fact("retains_grad", "{}.retains_grad", is_of_history=True),
    Fact("_version", "{}._version"),
    Fact("_backward_hooks", "({}._backward_hooks is None)"),
    Fact("_post_accumulate_grad_hooks", "({}._post_accumulate_grad_hooks is None)"),
    Fact("_base", "({}._base is None)"),  # what it is: see `base_among`
)
_OF_METHODS = (
    Fact("storage_offset", "{}.storage_offset()"),
    Fact("is_shared", "{}.is_shared()"),
    Fact("is_pinned", "{}.is_pinned()"),
    Fact("_is_view", "{}._is_view()"),
)
_TRACES = (
    "treeplay.",
    *(f"torch.{name}" for name in ("_subclasses", "_functorch", "_prims", "_meta_registrations", "fx.")),
)
HAS_GRADIENT = Fact("grad", "({}.grad is not None)")
VERSION = _ATTRIBUTES["_version"].__get__
BASE = _ATTRIBUTES["_base"].__get__


def base_among(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> tuple[int | None, TensorSpec | None] | None:
    """What a tensor is a view of: which of `others`, if it is any, and what it looks like; None for no view."""
    base = tensor._base
    if base is None:
        return None
    which = next((at for at, other in enumerate(others) if other is base), None)
    return which, TensorSpec.of(base) if has_strides(base) else None


def is_of_tracer(frame: FrameType) -> bool:
    """Whether code is of what traces a program, and asks for itself."""
    return str(frame.f_globals.get("__name__")).startswith(_TRACES)


FACTS: Mapping[Any, Fact] = {
    **{_ATTRIBUTES[fact.name].__get__: fact for fact in _OF_PROPERTIES},
    **{getattr(torch.Tensor, fact.name): fact for fact in _OF_METHODS},
}
"""Facts by the function that a function mode is told of."""
BY_NAME: Mapping[str, Fact] = {fact.name: fact for fact in (*FACTS.values(), HAS_GRADIENT)}

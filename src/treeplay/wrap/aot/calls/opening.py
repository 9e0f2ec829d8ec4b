"""What generated functions call to open tensors made of others: checks of classes, and gradients of another class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.torch_seam.fakes import waited
from treeplay.torch_seam.modes import is_transformed, is_wrapper
from treeplay.values.layout import Layout
from treeplay.wrap.aot.calls.node import gradient_in_layout
from treeplay.wrap.aot.calls.surroundings import transformed

GradientPlace = tuple[int, str, str]
"""Of a gradient: the output that it arrives for, the path inside of it, and the user's line that made the output, if known."""

PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, int, float, bool, type(None)))
"""Classes that need no second look where a plain value was traced."""

_AGAIN = "Fix: wrap the function again for arguments of these classes"


def check_plain(values: Sequence[Any], names: Sequence[str]) -> list[Any]:
    """The values, once they have come. Refuses a call with a wrapper where a plain tensor was traced, and one inside a
    transform: the graph sees neither."""
    if is_transformed():
        raise transformed("call")
    values = [waited(value) for value in values]
    for value, name in zip(values, names, strict=True):
        if is_wrapper(value):
            raise UsageError(
                f"$.{name}: expected a plain tensor, as traced, found {_said(type(value))}, which is made of other "
                f"tensors. {_AGAIN}"
            )
    return values


def as_kind(value: Any, kind: type, path: str) -> Any:
    """The wrapper of class `kind` that `value` is once it has come, or a refusal of the call."""
    value = waited(value)
    if type(value) is not kind:
        raise UsageError(f"$.{path}: expected {_said(kind)}, as traced, found {_said(type(value))}. {_AGAIN}")
    return value


def check_notes(value: Any, context: Any, path: str) -> None:
    """Refuse a call with a wrapper whose class notes something else than at the trace: the graph has it built in."""
    found = value.__tensor_flatten__()[1]
    if not is_same_note(found, context):
        raise UsageError(
            f"$.{path}: expected {_said(type(value))} with {context!r}, as traced, found {found!r}. Fix: wrap the "
            "function again for arguments with these notes"
        )


def as_tangent(gradient: Any, kind: type, context: Any, place: GradientPlace) -> Any:
    """A gradient of the class and with the notes that the backward was traced for, converted by its class if need be."""
    gradient = waited(gradient)
    is_kind = type(gradient) is kind
    if is_kind and is_same_note(gradient.__tensor_flatten__()[1], context):
        return gradient
    convert = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
    converted = None if convert is None else convert(context) if is_kind else convert(context, kind)
    if type(converted) is not kind:
        raise _unlike(gradient, kind, context, place)
    return converted


def plain_gradient(gradient: Any, layout: Layout, place: GradientPlace) -> Any:
    """A gradient that is no plain tensor, or lies or reads otherwise than the backward was traced for, as one that does not."""
    gradient = waited(gradient)
    if is_wrapper(gradient):
        convert = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
        converted = None if convert is None else convert(None, torch.Tensor)
        if converted is None or is_wrapper(converted):
            raise _unlike(gradient, torch.Tensor, None, place)
        gradient = converted
    if gradient.layout is torch.strided and gradient.stride() == layout.stride:
        return gradient.resolve_conj().resolve_neg()
    return gradient_in_layout(gradient, layout)


def is_same_note(one: Any, other: Any) -> bool:
    """Whether two notes of a class are equal; what cannot be compared counts as equal."""
    try:
        return bool(one == other)
    except Exception:  # such as tensors among the notes
        return True


def _unlike(gradient: Any, kind: type[Any], context: Any, place: GradientPlace) -> UsageError:
    found = _said(type(gradient))
    if type(gradient) is kind:
        found += f" with {gradient.__tensor_flatten__()[1]!r}"
    expected = _said(kind) if context is None else f"{_said(kind)} with {context!r}"
    cure = "call .detach() on an output whose gradient is not used"
    if is_wrapper(gradient):
        cure += f", or give {type(gradient).__name__} a method __coerce_same_metadata_as_tangent__"
    output, path, where = place
    made = f", made at {where}" if where else ""
    return UsageError(
        f"the gradient{path} that arrived for output {output} of a compiled function{made}: expected {expected}, as traced, "
        f"found {found}. Fix: {cure}"
    )


def _said(kind: type) -> str:
    return "a plain tensor" if kind in (torch.Tensor, torch.nn.Parameter) else kind.__name__

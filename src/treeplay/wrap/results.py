"""The results of a call as expressions: new memory, inputs, views of either, and the containers that they come in."""

from __future__ import annotations

from collections import deque

import torch

from treeplay.codegen import list_of, tuple_of
from treeplay.codegen.idioms import GRAD_MODES, switched, view_expression
from treeplay.values.layout import Layout
from treeplay.values.output import Cast, Computed, Fresh, SameAsInput, Static, View
from treeplay.values.signature import Built, GivenContainer, Ref, StateContainer
from treeplay.values.structure import DICTS, Leaf, Structure, is_namedtuple
from treeplay.values.unflatten import object_of, takes_fields_only, with_fields
from treeplay.wrap.places import CallText


def expression_of(text: CallText, ref: Ref) -> str:
    """An expression for a result."""
    key = (type(ref), repr(ref))
    match ref:
        case Fresh(index, requires_grad):
            return f"out[{index}].requires_grad_()" if requires_grad else f"out[{index}]"
        case SameAsInput(index):
            return text.inputs[index]
        case Static(value):
            return text.literal(value)
        case Computed(expression, cls):
            return text.once(key, f"({expression})" if cls is None else f"{text.constant(cls)}({expression})")
        case GivenContainer(name):
            return name
        case StateContainer(place):
            return text.value(place)
        case Built(structure, refs, None):
            return built(text, structure, refs)
        case Built(structure, refs, number):
            return text.shared.get(number) or text.once(number, built(text, structure, refs))
        case View(with_gradients=bool(mode)) if key not in text.shared:
            with text.aside() as lines:
                made = _view(text, ref)
            switched(text, [GRAD_MODES[mode]], lines, is_short=True)
            return made
        case View():
            return _view(text, ref)


def _view(text: CallText, view: View) -> str:
    """A variable for a view."""
    base = expression_of(text, view.of)
    mark = ".requires_grad_()" if view.requires_grad else ""
    if view.cast is not None:
        base = _cast(text, base, view, view.cast)
    is_whole = isinstance(view.of, Fresh) and view.cast is None  # it begins where its memory does
    apart = "" if not view.is_detached else ".data" if view.has_own_version else ".detach()"
    return text.once((View, repr(view)), f"{view_expression(base, view.layout, is_whole=is_whole)}{apart}{mark}")


def _cast(text: CallText, base: str, view: View, cast: Cast) -> str:
    """A variable for a piece of memory read as another dtype."""
    piece = view_expression(
        base, Layout((cast.length,), (1,), cast.start), is_whole=not isinstance(view.of, SameAsInput)
    )
    if not cast.is_complex:
        expression = f"{piece}.view({text.constant(cast.dtype)})"
    elif cast.dtype.is_complex:
        expression = f"{text.use('view_as_complex', torch.view_as_complex)}({piece}.view(-1, 2))"
    else:
        expression = f"{text.use('view_as_real', torch.view_as_real)}({piece}).view(-1)"
    return text.once((base, cast, view.with_gradients), expression)


def built(text: CallText, structure: Leaf | Structure, refs: tuple[Ref, ...]) -> str:
    """An expression that builds a container of results."""
    if isinstance(structure, Leaf):
        return expression_of(text, refs[structure.index])
    parts = [built(text, part, refs) for part in structure.parts]
    if structure.rest is not None:
        make, cls, keys = text.use("object_of", object_of), text.constant(structure.cls), text.constant(structure.keys)
        return f"{make}({cls}, {keys}, {structure.rest}, {tuple_of(parts)})"
    if structure.is_named:
        if not takes_fields_only(structure.cls):
            fill = text.use("with_fields", with_fields)
            return f"{fill}({text.constant(structure.cls)}, {structure.keys}, {tuple_of(parts)})"
        fields = ", ".join(f"{name}={part}" for name, part in zip(structure.keys, parts, strict=True))
        return f"{text.constant(structure.cls)}({fields})"
    if structure.cls in DICTS:
        pairs = zip(structure.keys, parts, strict=True)
        display = "{" + ", ".join(f"{text.literal(key)}: {part}" for key, part in pairs) + "}"
        return display if structure.cls is dict else f"{text.constant(structure.cls)}({display})"
    if structure.cls is list:
        return list_of(parts)
    if structure.cls is deque:
        return f"{text.constant(deque)}({list_of(parts)}, {structure.most})"
    if is_namedtuple(structure.cls):
        new = text.use("new", tuple.__new__)  # its own `__new__` has run
        return f"{new}({text.constant(structure.cls)}, {tuple_of(parts)})"
    if structure.cls is not tuple:  # one of torch's named results, made of a tuple
        return f"{text.constant(structure.cls)}({tuple_of(parts)})"
    return tuple_of(parts)

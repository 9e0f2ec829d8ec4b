"""The results of a call as expressions: new memory, inputs, views of either, and the containers that they come in."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch

from treeplay.codegen import list_of, tuple_of
from treeplay.codegen.idioms import view_of
from treeplay.values.layout import Layout
from treeplay.values.output import Cast, Computed, Fresh, SameAsInput, Static, View
from treeplay.values.signature import Built, GivenContainer, Ref, StateContainer
from treeplay.values.structure import DICTS, Leaf, Structure, is_namedtuple
from treeplay.values.unflatten import object_of, takes_fields_only, with_fields
from treeplay.wrap.places import CallText


class ResultText(CallText):
    """A writer that knows the variables of the inputs, and puts results together from `out`."""

    def __init__(self, **names: Any) -> None:
        super().__init__(**names)
        self.inputs: list[str] = []
        self.shared: dict[Any, str] = {}  # variables of what must be one object however often it is used

    def ref(self, ref: Ref) -> str:
        """An expression for a result."""
        key = (type(ref), repr(ref))
        match ref:
            case Fresh(index, requires_grad):
                return f"out[{index}].requires_grad_()" if requires_grad else f"out[{index}]"
            case SameAsInput(index):
                return self.inputs[index]
            case Static(value):
                return self.literal(value)
            case Computed(expression):
                return f"({expression})"
            case GivenContainer(name):
                return name
            case StateContainer(place):
                return self.value(place)
            case Built(structure, refs, None):
                return self.built(structure, refs)
            case Built(structure, refs, number):
                return self.shared.get(number) or self.once(number, self.built(structure, refs))
            case View(of, layout, is_detached, requires_grad, cast):
                base = self.ref(of)
                mark = ".requires_grad_()" if requires_grad else ""
                if cast is not None:
                    base = self.cast(base, cast, is_input=isinstance(of, SameAsInput))
                is_whole = isinstance(of, Fresh) and cast is None  # it begins where its memory does
                source = f"{base}.detach()" if is_detached else base
                return self.once(key, f"{view_of(source, layout, is_whole=is_whole, begins=base)}{mark}")

    def cast(self, base: str, cast: Cast, *, is_input: bool) -> str:
        """A variable for a piece of memory read as another dtype."""
        piece = view_of(base, Layout((cast.length,), (1,), cast.start), is_whole=not is_input)
        if not cast.is_complex:
            expression = f"{piece}.view({self.constant(cast.dtype)})"
        elif cast.dtype.is_complex:
            expression = f"{self.use('view_as_complex', torch.view_as_complex)}({piece}.view(-1, 2))"
        else:
            expression = f"{self.use('view_as_real', torch.view_as_real)}({piece}).view(-1)"
        return self.once((base, cast), expression)

    def once(self, key: Any, expression: str) -> str:
        """A variable for an expression that must give one object however often it is used."""
        name = f"view_{len(self.shared)}" if key not in self.shared else self.shared[key]
        if key not in self.shared:
            self.shared[key] = name
            self.add(f"{name} = {expression}")
        return name

    def built(self, structure: Leaf | Structure, refs: tuple[Ref, ...]) -> str:
        """An expression that builds a container of results."""
        if isinstance(structure, Leaf):
            return self.ref(refs[structure.index])
        parts = [self.built(part, refs) for part in structure.parts]
        if structure.rest is not None:
            make, cls, keys = (
                self.use("object_of", object_of),
                self.constant(structure.cls),
                self.constant(structure.keys),
            )
            return f"{make}({cls}, {keys}, {structure.rest}, {tuple_of(parts)})"
        if structure.is_named:
            if not takes_fields_only(structure.cls):
                fill = self.use("with_fields", with_fields)
                return f"{fill}({self.constant(structure.cls)}, {structure.keys}, {tuple_of(parts)})"
            fields = ", ".join(f"{name}={part}" for name, part in zip(structure.keys, parts, strict=True))
            return f"{self.constant(structure.cls)}({fields})"
        if structure.cls in DICTS:
            pairs = zip(structure.keys, parts, strict=True)
            display = "{" + ", ".join(f"{self.literal(key)}: {part}" for key, part in pairs) + "}"
            return display if structure.cls is dict else f"{self.constant(structure.cls)}({display})"
        if structure.cls is list:
            return list_of(parts)
        if structure.cls is deque:
            return f"{self.constant(deque)}({list_of(parts)}, {structure.most})"
        if is_namedtuple(structure.cls):
            new = self.use("new", tuple.__new__)  # its own `__new__` has run
            return f"{new}({self.constant(structure.cls)}, {tuple_of(parts)})"
        if structure.cls is not tuple:  # one of torch's named results, made of a tuple
            return f"{self.constant(structure.cls)}({tuple_of(parts)})"
        return tuple_of(parts)

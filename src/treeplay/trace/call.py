"""A call of a program: the arguments, taken apart once, and what a program is as it is called."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.trace.arrays import can_be_a_tensor
from treeplay.trace.found import PLAIN
from treeplay.values.kinds import is_a
from treeplay.values.location import Location
from treeplay.values.structure import Leaf, Structure, classes_in, flatten, is_unhashable


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call, taken apart once."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    structure: Leaf | Structure
    numbers: frozenset[int] = frozenset()  # the leaves that are floats, and inputs of a recording

    def with_leaves(self, others: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with others in the places of some leaves, which are no parts of containers."""
        if not others or not isinstance(self.structure, Structure):
            return self.args, self.kwargs
        args, kwargs = self.structure.parts

        def put(value: Any, part: Leaf | Structure) -> Any:
            if isinstance(part, Structure) and part.is_array:
                part = part.parts[0]
            return others.get(part.index, value) if isinstance(part, Leaf) else value

        parts = args.parts if isinstance(args, Structure) else ()
        named = kwargs.parts if isinstance(kwargs, Structure) else ()
        given = tuple(map(put, self.args, parts))
        return given, {key: put(value, part) for (key, value), part in zip(self.kwargs.items(), named, strict=True)}

    @property
    def arrays(self) -> dict[int, Any]:
        """The NumPy arrays that are arguments, each by the leaf of its tensor."""
        if not isinstance(self.structure, Structure):
            return {}
        values = zip(self.structure.parts, (self.args, self.kwargs.values()), strict=True)
        given = [pair for part, found in values for pair in zip(getattr(part, "parts", ()), found, strict=False)]
        found = [(part.parts[0], array) for part, array in given if isinstance(part, Structure) and part.is_array]
        return {leaf.index: array for leaf, array in found if isinstance(leaf, Leaf)}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor leaves, each tensor once."""
        return list({id(leaf): leaf for leaf in self.leaves if is_a(leaf, torch.Tensor)}.values())


def call_of(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    opens: Callable[[Any], bool] = is_unhashable,
    *,
    takes_arrays: bool = False,
) -> Call:
    """A call with these arguments. `opens` says which objects among them count as what they hold; with `takes_arrays`, a NumPy
    array that is an argument itself counts as a tensor."""
    leaves, structure = flatten((args, kwargs), opens=opens)
    if takes_arrays and any(map(can_be_a_tensor, leaves)) and isinstance(structure, Structure):
        parts = tuple(_with_arrays(part, leaves) for part in structure.parts)
        structure = replace(structure, parts=parts)
    return Call(args, kwargs, leaves, structure)


def _with_arrays(part: Leaf | Structure, leaves: list[Any]) -> Leaf | Structure:
    """Arguments, with the arrays among them as containers of a tensor, which takes their place among the leaves."""
    if isinstance(part, Leaf):
        return part
    opened: list[Leaf | Structure] = []
    for each in part.parts:
        if isinstance(each, Leaf) and can_be_a_tensor(array := leaves[each.index]):
            leaves[each.index] = torch.from_numpy(array)
            each = Structure(type(array), (), (each,))
        opened.append(each)
    return replace(part, parts=tuple(opened))


def roots_of(program: Any, call: Call, unread: Collection[int] = ()) -> list[tuple[Any, str]]:
    """Where a walk over what a run read begins, with labels; leaves of the arguments that were not read, by their index, are
    left out."""
    leaves = [leaf for at, leaf in enumerate(call.leaves) if at not in unread]
    objects = [leaf for leaf in leaves if not is_a(leaf, (torch.Tensor, *PLAIN))]
    roots = [(program, "program"), *((value, f"this {type(value).__name__}") for value in objects)]
    return roots + [(cls, cls.__qualname__) for cls in classes_in(call.structure)]


def home_of(program: Any) -> Location | None:
    """Where the source of `program` begins."""
    if isinstance(program, torch.nn.Module):
        program = program.forward
    elif not hasattr(program, "__code__") and not hasattr(program, "__func__"):
        program = getattr(program, "func", vars(type(program)).get("__call__"))
    code = getattr(getattr(program, "__func__", program), "__code__", None)
    return Location(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else None

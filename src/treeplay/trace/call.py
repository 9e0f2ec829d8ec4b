"""A call of a program: the arguments, taken apart once, and what a program is as it is called."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from treeplay.trace.arrays import can_be_a_tensor
from treeplay.values.flatten import flatten
from treeplay.values.kinds import PLAIN, is_a
from treeplay.values.location import Location
from treeplay.values.place import Trail
from treeplay.values.structure import Leaf, Structure, classes_in, indices_in, is_unhashable


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call, taken apart once."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    structure: Leaf | Structure
    numbers: frozenset[int] = frozenset()  # the leaves that are floats or integers, and inputs of a recording
    arrays: dict[int, Any] = field(default_factory=dict)  # the NumPy arrays, each by the leaf of its tensor
    state: tuple[Trail, ...] = ()
    """The ways to numbers in the program's state that are inputs, too."""
    fixed: frozenset[Trail] = frozenset()
    """The ways to those that are known to be none."""
    is_plain: bool = False
    """Whether these stay the numbers that they are. What the program writes there is no matter then."""
    ran: set[str] = field(default_factory=set)
    """The names in code of the program that traces of its calls saw run; each trace adds its own."""

    @contextmanager
    def with_leaves(self, others: Mapping[int, Any]) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments with others in the places of some leaves: also in the lists and dictionaries among them, as long as
        the block lasts, and if the block puts nothing else there."""
        undo: list[tuple[Any, Any, Any, Any]] = []

        def put(value: Any, part: Leaf | Structure) -> Any:
            if isinstance(part, Structure) and part.is_array:
                part = part.parts[0]
            if isinstance(part, Leaf):
                return others.get(part.index, value)
            if others.keys().isdisjoint(indices_in(part)):
                return value
            if part.cls is tuple:
                parts = tuple(map(put, value, part.parts))
                return value if all(map(operator.is_, parts, value)) else parts
            for key, below in _items(part):
                before = value[key]
                after = put(before, below)
                if after is not before:
                    undo.append((value, key, before, after))
                    value[key] = after
            return value

        try:
            if others and isinstance(self.structure, Structure):
                args, kwargs = self.structure.parts
                yield put(self.args, args), put({**self.kwargs}, kwargs)
            else:
                yield self.args, self.kwargs
        finally:
            for container, key, before, after in reversed(undo):
                with suppress(LookupError):
                    if container[key] is after:
                        container[key] = before

    @property
    def has_numbers(self) -> bool:
        """Whether numbers are inputs."""
        return bool(self.numbers or self.state)

    def plain(self) -> Call:
        """The call with numbers as they are."""
        return replace(self, numbers=frozenset(), is_plain=True)

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
    ran: set[str] | None = None,
) -> Call:
    """A call with these arguments. `opens` says which objects among them count as what they hold; with `takes_arrays`, a NumPy
    array counts as a tensor, be it an argument or in a dictionary, list or tuple among them. `ran`: the names that ran."""
    ran = set() if ran is None else ran
    leaves, structure = flatten((args, kwargs), opens=opens, opens_sets=True)
    found = {at: leaf for at, leaf in enumerate(leaves) if can_be_a_tensor(leaf)} if takes_arrays else {}
    if not found:
        return Call(args, kwargs, leaves, structure, ran=ran)
    arrays: dict[int, Any] = {}
    structure = _with_arrays(structure, found, arrays)
    for at, array in arrays.items():
        leaves[at] = torch.from_numpy(array)
    return Call(args, kwargs, leaves, structure, arrays=arrays, ran=ran)


def _with_arrays(part: Leaf | Structure, found: Mapping[int, Any], taken: dict[int, Any]) -> Leaf | Structure:
    """Arguments, with the arrays `found` in plain containers as containers of a tensor; those are `taken`."""
    if isinstance(part, Leaf):
        if part.index not in found:
            return part
        taken[part.index] = found[part.index]
        return Structure(type(found[part.index]), (), (part,))
    if not _is_plain(part):
        return part
    return replace(part, parts=tuple(_with_arrays(below, found, taken) for below in part.parts))


def _is_plain(part: Structure) -> bool:
    return part.cls in (dict, list, tuple) and part.rest is None


def _items(part: Structure) -> Iterator[tuple[Any, Leaf | Structure]]:
    """The parts of a plain container, each by its key or index; none of another container."""
    if _is_plain(part):
        yield from zip(part.keys or range(len(part.parts)), part.parts, strict=True)


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

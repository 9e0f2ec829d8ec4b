"""What a compiled graph returns, by the memory of one run: inputs, views of them, new memory, and what is no tensor.

    inputs, results of a run ──▶ Returns ┬▶ bases: the new storages, each once, which a recording makes anew for each call
                                         └▶ write_results: [made[0], args[2], made[1].as_strided(...), ...]

A graph saves for its backward what it was given, and views of it: a recording must not copy those, and a view has to be of
the tensor of the day. So a recording is asked for new memory only, and the results are put together from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.codegen import Writer, list_of
from treeplay.codegen.idioms import view_of
from treeplay.trace.returned import is_plain, is_whole, whole
from treeplay.trace.tape import storage_of


@dataclass(frozen=True, slots=True)
class PlainValue:
    """No tensor: None, or a number that is the same in every call."""

    value: Any


@dataclass(frozen=True, slots=True)
class ArgumentItself:
    """The very argument at `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class ArgumentView:
    """A view of the argument at `index`, or of the base at it; `offset` counts elements from where that begins."""

    index: int
    is_of_base: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Made:
    """The base at `index` as it is."""

    index: int


Part = PlainValue | ArgumentItself | ArgumentView | Made


@dataclass(frozen=True, slots=True)
class Returns:
    """How each result is found, and which result shows the storage of each base."""

    parts: tuple[Part, ...]
    owners: tuple[int, ...]

    def bases_of(self, results: Sequence[Any]) -> list[torch.Tensor]:
        """The new storages of a run's results, as tensors over all of each."""
        return [whole(results[at]) for at in self.owners]


def survey_returns(args: Sequence[Any], results: Sequence[Any]) -> Returns | str:
    """How `results` lie in the memory of `args` and in new memory; or why a recording cannot tell."""
    places = {id(arg): at for at, arg in reversed(list(enumerate(args))) if isinstance(arg, torch.Tensor)}
    storages: dict[int, list[int]] = {}
    for at, arg in enumerate(args):
        if isinstance(arg, torch.Tensor):
            storages.setdefault(storage_of(arg), []).append(at)
    parts: list[Part] = []
    owners: list[int] = []
    bases: dict[int, int] = {}
    made: dict[int, Made] = {}
    for at, result in enumerate(results):
        if not isinstance(result, torch.Tensor):
            parts.append(PlainValue(result))
            continue
        if not is_plain(result):
            return f"result {at} is more than memory, shape and strides"
        if id(result) in places:
            parts.append(ArgumentItself(places[id(result)]))
            continue
        if id(result) in made:  # one tensor given twice, such as a result that the backward needs too
            parts.append(made[id(result)])
            continue
        inside = storages.get(storage_of(result), ())
        if len(inside) > 1:
            return f"result {at} is a view of memory that inputs {', '.join(map(str, inside))} share"
        if inside:
            base = args[inside[0]]
            if base.dtype != result.dtype:
                return f"result {at} is a view of input {inside[0]} with another dtype"
            offset = int(result.storage_offset()) - int(base.storage_offset())
            parts.append(ArgumentView(inside[0], False, tuple(result.shape), result.stride(), offset))
            continue
        known = bases.setdefault(storage_of(result), len(owners)) if result.untyped_storage().nbytes() else len(owners)
        if known == len(owners):
            owners.append(at)
        elif results[owners[known]].dtype != result.dtype:
            return f"results {owners[known]} and {at} are of one memory and of different dtypes"
        if is_whole(result) and owners[known] == at:
            made[id(result)] = Made(known)
            parts.append(made[id(result)])
        else:
            parts.append(ArgumentView(known, True, tuple(result.shape), result.stride(), int(result.storage_offset())))
    return Returns(tuple(parts), tuple(owners))


def write_results(text: Writer, returns: Returns, args: str, made: str) -> str:
    """A list of the results; `args` and `made` are what the text calls the two lists."""
    items = []
    for part in returns.parts:
        match part:
            case PlainValue(value):
                items.append(text.literal(value))
            case ArgumentItself(index):
                items.append(f"{args}[{index}]")
            case Made(index):
                items.append(f"{made}[{index}]")
            case ArgumentView(index, is_of_base, shape, stride, offset):
                base = f"{made if is_of_base else args}[{index}]"
                items.append(view_of(base, shape, stride, offset, is_whole=is_of_base))
    return list_of(items)

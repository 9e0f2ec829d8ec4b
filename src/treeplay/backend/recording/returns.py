"""What a compiled graph returns, by the memory of one run.

    inputs, results of a run ──▶ Returns ┬▶ bases: the new storages, each once, which a recording makes anew for each call
                                         └▶ result_texts:  [made[0], args[2], made[1].as_strided(...), ...]

A graph saves for its backward what it was given, and views of it: a recording must not copy those, and a view has to be of
the tensor of the day. So a recording is asked for new memory only, and the results are put together from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.codegen import Writer
from treeplay.codegen.idioms import view_of
from treeplay.torch_seam.tensors import extent_of
from treeplay.trace.signature.returned import is_plain, whole
from treeplay.values.memory import OutputMemory
from treeplay.values.output import Fresh, OutputRef, SameAsInput, Static, View


@dataclass(frozen=True, slots=True)
class Returns:
    """Where each result comes from, and which result shows the storage of each new memory."""

    refs: tuple[OutputRef, ...]
    owners: tuple[int, ...]

    def bases_of(self, results: Sequence[Any]) -> list[torch.Tensor]:
        """The new storages of a run's results, as tensors over all of each."""
        return [whole(results[at]) for at in self.owners]


def survey_returns(args: Sequence[Any], results: Sequence[Any]) -> Returns | str:
    """Where `results` lie in the memory of `args` and in new memory; or why a recording cannot tell."""
    tensors = [at for at, arg in enumerate(args) if isinstance(arg, torch.Tensor)]
    # Reversed: of the places of a tensor that is given several times, the first counts.
    known: dict[int, OutputRef] = {id(args[at]): SameAsInput(at) for at in reversed(tensors)}
    memory = OutputMemory(extent_of(args[at]) for at in tensors)
    refs: list[OutputRef] = []
    owners: list[int] = []
    for at, result in enumerate(results):
        if not isinstance(result, torch.Tensor):
            refs.append(Static(result))
            continue
        if id(result) not in known:  # no argument, nor one tensor given twice: a result that the backward needs too
            found = _in_memory(result, at, memory, tensors)
            if isinstance(found, str):
                return found
            known[id(result)] = found
            # The first result in a new storage: it is from this one that the storage is taken.
            if len(memory.made) > len(owners):
                owners.append(at)
        refs.append(known[id(result)])
    return Returns(tuple(refs), tuple(owners))


def _in_memory(result: torch.Tensor, at: int, memory: OutputMemory, tensors: Sequence[int]) -> Fresh | View | str:
    """Where a result lies that is no argument; `tensors` are the arguments that the inputs of `memory` are."""
    if not is_plain(result):
        return f"result {at} is more than memory, shape and strides"
    extent = extent_of(result)
    inside = [tensors[owner] for owner in memory.owners(extent)]
    if len(inside) > 1:  # in one memory today, and nobody checks that they are tomorrow
        return f"result {at} is a view of memory that inputs {', '.join(map(str, inside))} share"
    ref = memory.ref(extent, extent.whole)
    if ref is None or (isinstance(ref, View) and ref.cast is not None):
        of = f"input {inside[0]}" if inside else "an earlier result"
        return f"result {at} is a view of {of} with another dtype"
    if isinstance(ref, View) and isinstance(ref.of, SameAsInput):
        return replace(ref, of=SameAsInput(inside[0]))
    return ref


def result_texts(text: Writer, returns: Returns, args: str, made: Sequence[str]) -> list[str]:
    """The results; `args` is what the text calls the list of arguments, `made` each tensor of new memory."""
    items = []
    for ref in returns.refs:
        match ref:
            case Static(value):
                items.append(text.literal(value))
            case SameAsInput(index):
                items.append(f"{args}[{index}]")
            case Fresh(index):
                items.append(made[index])
            case View(of, layout):
                base = made[of.index] if isinstance(of, Fresh) else f"{args}[{of.index}]"
                items.append(view_of(base, layout, is_whole=isinstance(of, Fresh)))
    return items


def result_of(ref: OutputRef, args: Sequence[Any], made: Sequence[Any]) -> Any:
    """A result, as the text gives it."""
    match ref:
        case Static(value):
            return value
        case SameAsInput(index):
            return args[index]
        case Fresh(index):
            return made[index]
        case View(of, layout):
            base = made[of.index] if isinstance(of, Fresh) else args[of.index]
            start = layout.offset if isinstance(of, Fresh) else base.storage_offset() + layout.offset
            return base.as_strided(layout.shape, layout.stride, start)

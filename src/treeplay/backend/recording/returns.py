"""What a compiled graph returns, by the memory of one run.

    inputs, results of a run ──▶ Returns ┬▶ bases: the new storages, each once, which a recording makes anew for each call
                                         └▶ ResultMaker:   made[0], args[2], made[1].as_strided(...), ...

A graph saves for its backward what it was given, and views of it: a recording must not copy those, and a view has to be of
the tensor of the day. So a recording is asked for new memory only, and the results are put together from that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.codegen import Writer
from treeplay.codegen.idioms import view_expression
from treeplay.torch_seam.tensors import extent_of, unusual
from treeplay.trace.signature.returned import whole
from treeplay.values.layout import Layout
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
    if unusual(result) is not None:
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


@dataclass(frozen=True, slots=True)
class ResultMaker:
    """Makes results out of arguments and new memory: as values, or as expressions of a generated function."""

    given: Callable[[int], Any]
    made: Callable[[int], Any]
    static: Callable[[Any], Any]
    view: Callable[..., Any]
    detached: Callable[[Any], Any]

    @classmethod
    def of_text(cls, text: Writer, made: Sequence[str]) -> ResultMaker:
        """As expressions; the text calls the arguments `args`, and each new memory as `made` says."""
        return cls("args[{}]".format, made.__getitem__, text.literal, view_expression, "{}.detach()".format)

    @classmethod
    def of_values(cls, args: Sequence[Any], made: Sequence[Any]) -> ResultMaker:
        """As values, from the arguments of a call and the new memory that it made."""
        return cls(args.__getitem__, made.__getitem__, lambda value: value, _view, torch.Tensor.detach)

    def __call__(self, ref: OutputRef) -> Any:
        match ref:
            case Static(value):
                return self.static(value)
            case SameAsInput(index):
                return self.given(index)
            case Fresh(index):
                return self.made(index)
            case View(of, layout):
                return self.view(self(of), layout, is_whole=isinstance(of, Fresh))


def _view(base: torch.Tensor, layout: Layout, *, is_whole: bool) -> torch.Tensor:
    start = layout.offset if is_whole else base.storage_offset() + layout.offset
    return base.as_strided(layout.shape, layout.stride, start)

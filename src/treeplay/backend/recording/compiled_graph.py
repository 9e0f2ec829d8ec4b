"""A compiled graph before anything replays it: what a device has to know of it, and calls of it as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from treeplay.backend.recording.saved_block import inputs_for_block
from treeplay.device.protocol import Births
from treeplay.errors import InternalError, UsageError
from treeplay.values.block import SavedLayout
from treeplay.values.boxed import Boxed
from treeplay.wrap.aot.calls.block import from_block

WrongKind = Callable[[Sequence[Any]], UsageError | None]


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A compiled graph and what a device has to know of it.

    `names` are its inputs'; `static` are those that stay where they are, `written` those that it writes. `draws`: whether it
    draws random numbers. `tells`: while it lasts, `run` tells of the memory that it allocates. `inner`: the first of the
    results that only its backward sees, and the end of them.
    """

    run: Boxed
    name: str
    names: tuple[str, ...]
    static: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    draws: bool = True
    tells: Callable[[Births], AbstractContextManager[None]] | None = None
    inner: tuple[int, int] = (0, 0)

    def in_block(self, layout: SavedLayout, first: int) -> CompiledGraph:
        """The same graph, which takes a block where values that lie in it would begin."""

        def inputs(some: Sequence[Any], block: Any) -> list[Any]:
            return inputs_for_block(some, block, layout, first)

        def places(some: frozenset[int]) -> frozenset[int]:
            flags = inputs([at in some for at in range(len(self.names))], any(at in some for at in inner))
            return frozenset(at for at, flag in enumerate(flags) if flag)

        inner = [at for at, part in enumerate(layout.parts, first) if part is not None]
        return replace(
            self,
            run=from_block(partial(checked_run, self), layout, first),
            names=tuple(inputs(self.names, "the saved block")),
            static=places(self.static),
            written=places(self.written),
        )


def checked_run(
    graph: CompiledGraph, args: list[Any], *, count: int | None = None, wrong_kind: WrongKind | None = None
) -> Sequence[Any]:
    """Run a graph as it is compiled: what compiled it owes an empty list and, where that is known, `count` results."""
    if wrong_kind is not None and (told := wrong_kind(args)) is not None:
        raise told
    results = graph.run(args)
    if args:
        raise InternalError(f"{graph.name} left {len(args)} values in the list of its arguments, which it has to empty")
    if count is not None and len(results) != count:
        raise InternalError(f"{graph.name} gave {len(results)} results, and {count} when it was recorded")
    return results


def wrong_kind_of(names: Sequence[str], tensors: frozenset[int], given: Sequence[Any]) -> UsageError | None:
    """What to say of arguments of which one is a tensor, or is none, as it was not when the graph was recorded; else None."""
    if len(given) != len(names):
        return UsageError(f"expected {len(names)} arguments ({', '.join(names)}), found {len(given)}")
    for at, (name, value) in enumerate(zip(names, given, strict=True)):
        if isinstance(value, torch.Tensor) is not (at in tensors):
            expected = "a tensor" if at in tensors else "no tensor"
            return UsageError(f"argument {at} (`{name}`): expected {expected}, found {type(value).__name__}")
    return None


def counting_calls(run: Boxed, calls: Counter[str], why: str) -> Boxed:
    """`run`, whose calls count under `why`."""

    def plain(args: list[Any]) -> Sequence[Any]:
        results = run(args)
        calls[why] += 1
        return results

    return plain

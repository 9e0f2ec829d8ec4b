"""Inputs at addresses that generated code cannot take: which to look at, decided when compiling, and their repair.

plan ─▶ inputs that are assumed to be aligned and might not be ─▶ at a call: a misaligned one is replaced by a copy
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treeplay.observe import counters
from treeplay.values import layout
from treeplay.values.boxed import Boxed
from treeplay.values.captured import InputFacts, Role

ALIGNMENT_BYTES = 16


def plan_alignment(inputs: Sequence[InputFacts]) -> tuple[int, ...]:
    """Positions of the inputs to look at on each call. Pure.

    Code is generated for what an input was when it was compiled: one that was misaligned is not taken to be aligned,
    and one that stays where it is needs no second look."""
    return tuple(at for at, item in enumerate(inputs) if _needs_a_look(item))


def _needs_a_look(item: InputFacts) -> bool:
    if item.spec is None or item.spec.device.type == "cpu" or item.role is Role.STATIC:
        return False
    return item.offset * item.spec.dtype.itemsize % ALIGNMENT_BYTES == 0


def is_misaligned(tensor: torch.Tensor) -> bool:
    """Whether generated code that takes an address for aligned cannot take this tensor."""
    return tensor.data_ptr() % ALIGNMENT_BYTES != 0


def copy_of_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor that lies as `tensor` does and has its values: elements that share an address there do so here."""
    size, stride = tuple(tensor.size()), tuple(tensor.stride())
    everything = tensor.as_strided((layout.span(size, stride),), (1,))
    return everything.clone().as_strided(size, stride)


def with_repair(run: Boxed, plan: Sequence[int], mutated: Sequence[int] = ()) -> Boxed:
    """`run` with misaligned inputs at the planned positions replaced by copies; what it writes into one is copied back.

    With nothing planned it is `run` itself."""
    if not plan:
        return run
    planned, written = tuple(plan), frozenset(mutated)

    def call(args: list[Any]) -> Sequence[Any]:
        back: list[tuple[torch.Tensor, torch.Tensor]] = []
        for at in planned:
            given = args[at]
            if is_misaligned(given):
                args[at] = copy_of_memory(given)
                counters.add("copies", "misaligned input")
                if at in written:
                    back.append((given, args[at]))
            del given  # it may die during the run
        results = run(args)
        for given, copy in back:
            given.copy_(copy)
        return results

    return call

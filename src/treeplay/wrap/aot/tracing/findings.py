"""What was noticed while a flat function ran for its trace; and its refusal, with the line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.values.location import Location
from treeplay.wrap.aot.tracing.custom_backwards import LeadsTo


@dataclass(frozen=True, slots=True)
class TakenView:
    """A tensor at the end of a trace: its size, and the view steps that lead to it (None if it is made of other tensors)."""

    size: tuple[Any, ...]
    steps: list[Any] | None


@dataclass(slots=True)
class TraceFindings:
    """What was noticed while the function ran for the trace.

    `again`: which results are one object with an earlier one; `touched`: arguments that were changed in place,
    if only for a while; `versioned`: those of them whose version moves, as it does not for a write through `.data`, nor where a
    batch norm brings its statistics up to date;
    `grad_mode_after`: the grad mode that the function left, if another than it found; `reshaped_then_written`: what
    changed the shape of a tensor whose memory was written later; `writes`: the operations that
    change a tensor in place, with the user's lines; `reshaped`: arguments whose own shape was changed in place, if only for a
    while, with what they are in the end; `results`: all results, where there are such arguments; `rebased`: arguments to
    which the function gave another history, be it where gradients are off, as a custom function's `mark_dirty` does;
    `own`: which results are an argument itself, by result; `grad_modes`: whether gradients were on where a result was
    taken that is a view, by result, where that is not as around the function; `own_versions`: results that came through `.data`
    and count their versions by themselves; `leads_to`: which inputs the results and the written inputs lead to in autograd's
    graph, be it without a gradient, as where a custom function's backward gives None.
    """

    again: dict[int, int] = field(default_factory=dict)
    touched: set[int] = field(default_factory=set)
    versioned: set[int] = field(default_factory=set)
    writes: list[tuple[str, Location | None]] = field(default_factory=list)
    grad_mode_after: bool | None = None
    reshaped_then_written: tuple[str, Location | None] | None = None
    reshaped: dict[int, TakenView] = field(default_factory=dict)
    results: list[TakenView | None] = field(default_factory=list)
    rebased: set[int] = field(default_factory=set)
    own: dict[int, int] = field(default_factory=dict)
    grad_modes: dict[int, bool] = field(default_factory=dict)
    own_versions: set[int] = field(default_factory=set)
    leads_to: LeadsTo = field(default_factory=dict)

    def line(self) -> Location | None:
        """The first line that changed a tensor in place, if any did."""
        return self.writes[0][1] if self.writes else None

    def moves_version(self, argument: int) -> bool:
        """Whether autograd sees the writes to an argument."""
        return argument in self.versioned or argument not in self.touched


def is_differentiable_leaf(sample: Any) -> bool:
    """Whether an argument is a leaf that needs a gradient: then autograd sees no write to it."""
    return isinstance(sample, torch.Tensor) and sample.requires_grad and sample.is_leaf


def refusal_to_wrap(
    op: str, why: str, where: Location | None, advice: str = "run this function without treeplay"
) -> Refusal:
    """A refusal to wrap the function."""
    return Refusal.of(op, why, advice, where)

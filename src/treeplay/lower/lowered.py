"""What every lowering gives back: a callable over tensors and numbers, and what is worth knowing about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Run = Callable[[list[torch.Tensor], Sequence[float]], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as a callable `run(tensors, numbers) -> outputs`.

    `tensors` are the values of the graph's tensor placeholders in order (the list may be emptied), `numbers` those of its
    number placeholders in order. The tensors that the graph writes are written in place; outputs are new tensors.
    Called with gradients disabled.
    """

    name: str
    run: Run
    scratch_bytes: int = 0
    operators: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    source: str = ""

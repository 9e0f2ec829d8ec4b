"""What every lowering gives back: a callable over tensors and numbers, and what is worth knowing about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.device.protocol import Births, Capturable, Fill, Replay


@dataclass(frozen=True, slots=True)
class Lowered:
    """A graph as a callable `run(tensors, numbers) -> outputs`.

    `tensors` are the values of the graph's tensor placeholders in order (the list may be emptied), `numbers` those of its
    number placeholders in order. The tensors that the graph writes are written in place; outputs are new tensors.
    Called with gradients disabled.

    `body` is the part of `run` that a stream capture can take: over the tensors, followed by `vector.tensor` if there is a
    vector of numbers. While `tells` lasts, it tells of the tensors that it makes.
    """

    name: str
    run: Replay
    body: Capturable | None = None
    vector: Fill | None = None
    tells: Callable[[Births], AbstractContextManager[None]] | None = None
    scratch_bytes: int = 0
    operators: int = 0
    details: dict[str, Any] = field(default_factory=dict)
    source: str = ""


def with_vector(body: Capturable, vector: Fill | None) -> Replay:
    """`body` as a callable over tensors and numbers."""

    def run(tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        if vector is not None:
            vector.fill(numbers)
            tensors.append(vector.tensor)
        return body(tensors)

    return run

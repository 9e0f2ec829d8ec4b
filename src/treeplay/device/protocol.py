"""The seam between the tree and what runs recordings: one Protocol, a device each for the host and for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Replay = Callable[[list[torch.Tensor], Sequence[float]], Sequence[torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a device made of a callable: `replay` launches it again; `scratch_bytes` is what it holds meanwhile."""

    replay: Replay
    scratch_bytes: int
    device: str


class Device(Protocol):
    """Records callables so that they can be replayed."""

    name: str

    def record(self, run: Replay, *, scratch_bytes: int, is_small: bool = False) -> Recorded:
        """Make `run` replayable. Must have no effect on the tensors it will be given.

        `is_small`: no operator of it is worth more than one thread of the host.
        """

    def facts(self) -> dict[str, Any]:
        """What `treeplay doctor` says of the device."""

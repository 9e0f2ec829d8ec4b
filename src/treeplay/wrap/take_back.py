"""A replay that fails is taken back: what it wrote and drew is as before, and the program itself runs.

It then raises what it raises, where it raises it, with what it had written by then; or, where only the recording failed, it
gives its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from treeplay.observe import counters
from treeplay.torch_seam.autograd import preserving_version
from treeplay.torch_seam.operators import clone_all
from treeplay.values.failing import InRange, ToKeep

Before = tuple[list[tuple[torch.Tensor, torch.Tensor]], list[tuple[torch.Generator, torch.Tensor]]]


@dataclass(frozen=True, slots=True)
class TakeBack:
    """What takes back a call that draws from `generators`."""

    keep: ToKeep
    generators: tuple[torch.Generator, ...]

    def kept(self, tensors: Sequence[torch.Tensor]) -> Before | None:
        """Copies of what may be written and drawn from before an operator fails; None if it is seen that none will."""
        if self.keep.unless and all(_holds(item, tensors[item.index]) for item in self.keep.unless):
            return None
        with torch.no_grad():
            given = [tensors[at] for at in self.keep.written]
            written = list(zip(given, clone_all([tensor.detach() for tensor in given]), strict=True))
        return written, [(item, item.get_state()) for item in self.generators] if self.keep.draws else []

    def put_back(self, before: Before | None) -> None:
        """Make everything what it was."""
        counters.add("replays taken back", "failed")
        if before is None:
            return
        for tensor, copy in before[0]:
            # Inference tensors have no version.
            with torch.no_grad(), nullcontext() if tensor.is_inference() else preserving_version(tensor):
                tensor.copy_(copy)
        for generator, state in before[1]:
            generator.set_state(state)


def _holds(wanted: InRange, indices: torch.Tensor) -> bool:
    if not indices.numel():
        return True
    low, high = torch.aminmax(indices)
    if low.item() >= 0 and high.item() < wanted.size:
        return True
    if wanted.ignored is None:
        return False
    return bool((((indices >= 0) & (indices < wanted.size)) | (indices == wanted.ignored)).all())

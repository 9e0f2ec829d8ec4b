"""Sample tensors as static memory: a sample is itself the buffer of its argument, wherever that is safe.

It is not where something else lives in the same bytes: another sample, a parameter, the buffer of another recording. Filling it
would then change more than the argument, so such a sample is copied once and the copy is the buffer.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch

from treeplay.graphs.buffers import Buffers
from treeplay.values.overlap import Interval, interval, overlaps_itself

_claimed: weakref.WeakSet[Buffers] = weakref.WeakSet()


def claim(buffers: Buffers) -> None:
    """Note that a recording uses these buffers; the claim ends with them."""
    _claimed.add(buffers)


class Claims:
    """The memory that buffers must stay away from while some samples are being placed."""

    def __init__(self, state: Iterable[torch.Tensor]) -> None:
        self._taken = [interval(tensor) for tensor in state]
        self._taken += [interval(tensor) for buffers in list(_claimed) for tensor in buffers.tensors]

    def place(self, samples: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """A leaf for each sample: over the sample's own memory if that is free, else over a copy."""
        return [self._place(sample) for sample in samples]

    def _place(self, sample: torch.Tensor) -> torch.Tensor:
        if self._is_free(sample):
            self._taken.append(interval(sample))
            return sample.detach().requires_grad_(sample.requires_grad)
        return own_copy(sample)

    def _is_free(self, sample: torch.Tensor) -> bool:
        if sample.is_inference() or overlaps_itself(sample) or isinstance(sample, torch.nn.Parameter):
            return False
        start, end = interval(sample)
        return not any(_meets((start, end), other) for other in self._taken)


def own_copy(sample: torch.Tensor) -> torch.Tensor:
    """A leaf with memory of its own."""
    return sample.detach().clone().requires_grad_(sample.requires_grad)


def _meets(a: Interval, b: Interval) -> bool:
    return a[0] < b[1] and b[0] < a[1]

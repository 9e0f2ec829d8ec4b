"""When the buffers of a compiled artifact are needed, and which of them can lie in memory of results that are not made yet.

A step makes most of its gradients late, and their memory is there from the beginning. Until a gradient is made, buffers that
are needed no longer by then can lie in it:

    time of allocation  ─▶  0 1 2 3 4 5 6
    buffer a                ■ ■ ■               freed before the gradient is made: it can lie in it
    buffer b                      ■ ■ ■ ■       needed beside the gradient: it has memory of its own
    gradient                [ a ]     ■ ■ ▶

Times are counts of allocations: all that is asked is which buffers are alive when another one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from treeplay.torch_seam.tensors import has_strides, storage_of
from treeplay.values.arena import Buffer, BufferPlace, places_inside
from treeplay.values.spec import TensorSpec

BufferKind = tuple[Any, ...]
"""What a wrapper asks for: sizes, strides, dtype."""

LEAST_BYTES = 1 << 16
"""Memory is mapped in pages of 2 MiB: a place for fewer bytes than this would save nothing that shows."""


@dataclass(frozen=True, slots=True)
class NotedBuffer:
    """What a wrapper allocated. `freed`: how many it had allocated when the memory was seen to be free again, None if that was
    never seen. `result`: the index of the one result that fills its memory, if it is returned so."""

    kind: BufferKind
    nbytes: int
    freed: int | None = None
    is_returned: bool = False
    result: int | None = None


class LifetimeNotes:
    """Notes what a run allocates, and when it is freed."""

    def __init__(self) -> None:
        self._made: list[tuple[BufferKind, StorageWeakRef, int]] = []
        self._alive: dict[int, StorageWeakRef] = {}
        self._freed: dict[int, int] = {}

    def allocate(self, allocate: Callable[..., torch.Tensor], *wanted: Any) -> torch.Tensor:
        """A buffer, as `allocate` makes it."""
        now = len(self._made)
        gone = [at for at, storage in self._alive.items() if storage.expired()]
        for at in gone:
            self._freed[at] = now
            del self._alive[at]
        tensor = allocate(*wanted)
        storage = tensor.untyped_storage()
        # The weak reference keeps the identity of the storage taken, not its memory.
        self._made.append((wanted, StorageWeakRef(storage), storage.nbytes()))
        if storage.nbytes() >= LEAST_BYTES:
            self._alive[now] = self._made[-1][1]
        return tensor

    def of_run(self, results: Sequence[Any]) -> tuple[NotedBuffer, ...]:
        """All buffers of the run that gave `results`, in the order of their allocation."""
        shown: dict[int, list[int]] = {}
        for index, one in enumerate(results):
            if isinstance(one, torch.Tensor) and has_strides(one):
                shown.setdefault(storage_of(one), []).append(index)
        return tuple(
            NotedBuffer(
                kind,
                nbytes,
                self._freed.get(at),
                storage.cdata in shown,
                _filling(shown.get(storage.cdata, ()), results, nbytes),
            )
            for at, (kind, storage, nbytes) in enumerate(self._made)
        )


def _filling(indices: Sequence[int], results: Sequence[Any], nbytes: int) -> int | None:
    """Which of the results fills memory of that size. A launch gives it memory for what it shows of itself, and no more."""
    if len(indices) != 1:
        return None
    (index,) = indices
    tensor = results[index]
    fills = tensor.numel() and not tensor.storage_offset() and TensorSpec.of(tensor).nbytes == nbytes
    return index if fills else None


def places_in_results(buffers: Sequence[NotedBuffer], results: Collection[int]) -> dict[int, BufferPlace]:
    """Which buffers lie in others that are returned as `results`, by how many were allocated before."""
    never = len(buffers)
    large = [(at, one) for at, one in enumerate(buffers) if one.nbytes >= LEAST_BYTES]
    return places_inside(
        [Buffer(at, one.nbytes, at, never) for at, one in large if one.result in results],
        [
            Buffer(at, one.nbytes, at, one.freed - 1)
            for at, one in large
            if one.freed is not None and not one.is_returned
        ],
    )

"""Which memory of ours a stream of the user's may still read: what `Tensor.record_stream` was called for.

Torch's allocator notes this for the moment at which it gets the memory back. Memory that treeplay writes again itself never
goes back, so it has to be asked here.
"""

from __future__ import annotations

from typing import Any

import torch

from treeplay.torch_seam.patched import stand_in

recorded: set[int] = set()
"""The watched storages that were recorded for another stream, by identity."""
_watched: set[int] = set()
_record_stream: Any = torch.Tensor.record_stream


def watch(memory: int) -> None:
    """From now on, note whether the storage with this identity is recorded for another stream."""
    # Torch defines it in the class in C: an entry here is ours.
    if "record_stream" not in vars(torch.Tensor):
        torch.Tensor.record_stream = _noting  # type: ignore[method-assign, assignment]
    _watched.add(memory)


def unwatch(memory: int) -> None:
    """The storage goes, and its identity may be another's."""
    _watched.discard(memory)
    recorded.discard(memory)


def _noting(tensor: torch.Tensor, s: Any) -> Any:
    found = _record_stream(tensor, s)
    memory = int(tensor.untyped_storage()._cdata)  # a tensor without a storage has failed by now
    if memory in _watched:
        recorded.add(memory)
    return found


stand_in(_noting)

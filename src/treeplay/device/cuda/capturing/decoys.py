"""Decoys: tensors like given ones that lie elsewhere. A capture executes nothing, so they need no data of their own.

    real       a ────────▶ |xxxx|        b ──▶ |yyyyyyyyyyyy|
    decoys     one block   |  aaaa bbbbbbbbbbbb     |           they may overlap: only their addresses matter

Each decoy starts at an address that is congruent to the real one (so that kernels are chosen alike) and differs from it by
a number of its own (so that a word that moved tells which tensor it belongs to).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from treeplay.torch_seam import allocator

CONGRUENT_BYTES = 512
_ROOM = 16  # places to choose from, for each tensor


def make_decoys(
    tensors: Sequence[torch.Tensor],
    *,
    seed: int,
    room: Callable[[int], int] | None = None,
    congruent_bytes: int = CONGRUENT_BYTES,
) -> list[torch.Tensor]:
    """A decoy for each tensor, with its shape, strides, dtype, storage offset and size of storage.

    Tensors of one storage get decoys in one place, so that they stay as far apart as they are. `room` gives the first of so
    many addresses, which the caller has as long as the decoys are used; without it they own their memory together, and it
    goes with the last of them. Address and real address are equal modulo `congruent_bytes` and, if that is less than 512, not
    modulo the next power of two. Values are undefined.
    """
    if not tensors:
        return []
    starts = list(dict.fromkeys(tensor.untyped_storage().data_ptr() for tensor in tensors))
    largest = max(tensor.untyped_storage().nbytes() for tensor in tensors)
    spread = (_ROOM * len(starts) + _ROOM) * CONGRUENT_BYTES
    nbytes = largest + spread + 2 * CONGRUENT_BYTES
    block = None
    if room is None:
        block = torch.empty(nbytes, dtype=torch.uint8, device=tensors[0].device)
        base = block.data_ptr()
    else:
        base = room(nbytes)
    places = place_decoys(starts, base, spread, seed=seed, congruent_bytes=congruent_bytes)
    at = dict(zip(starts, places, strict=True))
    return [_decoy(tensor, at[tensor.untyped_storage().data_ptr()], block) for tensor in tensors]


def place_decoys(
    starts: Sequence[int], base: int, room: int, *, seed: int, congruent_bytes: int = CONGRUENT_BYTES
) -> list[int]:
    """Where to put a decoy for each start, within `room` bytes and twice the step from `base` on: pure."""
    chance = random.Random(seed)
    shift = congruent_bytes if congruent_bytes < CONGRUENT_BYTES else 0
    base = -(-base // CONGRUENT_BYTES) * CONGRUENT_BYTES
    # 0 is taken from the start: a decoy that lies where its tensor does would not show what holds the address.
    deltas: set[int] = {0}
    places = []
    for start in starts:
        place, delta = start, 0
        while delta in deltas:
            step = chance.randrange(room // CONGRUENT_BYTES)
            place = base + step * CONGRUENT_BYTES + (start + shift) % CONGRUENT_BYTES
            delta = place - start
        deltas.add(delta)
        places.append(place)
    return places


def unowned(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, which does not keep its memory alive."""
    return _decoy(tensor, tensor.untyped_storage().data_ptr(), None)


def _decoy(tensor: torch.Tensor, start: int, block: torch.Tensor | None) -> torch.Tensor:
    storage = allocator.storage_at(start, tensor.device, tensor.untyped_storage().nbytes())
    decoy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    decoy.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    decoy.decoy_memory = block  # type: ignore[attr-defined]  # keeps the memory
    return decoy.requires_grad_(tensor.requires_grad) if tensor.requires_grad else decoy

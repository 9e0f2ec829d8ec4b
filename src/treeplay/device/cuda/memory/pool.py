"""A pool of torch's allocator whose segments lie at addresses of ours, and how torch is made to forget it.

Torch counts who claims a pool, and gives its segments back when caches are emptied and nobody claims it. It cannot empty them
while anybody captures on the device. So this is done in the turn to capture, and what is left to be waited for is a capture by
somebody who takes no turns.
"""

from __future__ import annotations

import time

import torch

from treeplay.device.turns import turns
from treeplay.errors import InternalError
from treeplay.torch_seam import allocator
from treeplay.torch_seam.allocator import Pool

_MOST_BYTES_CACHED = 16 << 20
_MOST_TRIES = 50
_SECONDS_BETWEEN = 0.002


class AddressPool:
    """A pool, until it is forgotten. `take` and `give_back` are addresses of native functions."""

    def __init__(self, index: int, take: int, give_back: int) -> None:
        self._index = index
        with torch.cuda.device(index):
            self._made: torch.cuda.MemPool | None = torch.cuda.MemPool(allocator.allocator_of(take, give_back))
            self.token: Pool = allocator.pool_of(self._made)
        self.is_forgotten = False

    def holds_tensors(self) -> bool:
        """Whether anything that was allocated from it is still there."""
        return bool(self.spans_in_use())

    def spans_in_use(self) -> list[tuple[int, int]]:
        """The first address, and the first one after it, of each block that is still there."""
        segments = allocator.allocator_state().segments_of(self.token)
        # Anything but "inactive": a block whose freeing waits for a stream is still in use.
        blocks = (block for segment in segments for block in segment["blocks"] if block["state"] != "inactive")
        return [(int(block["address"]), int(block["address"] + block["size"])) for block in blocks]

    def forget_with_graph(self) -> None:
        """Have torch forget it, of which no tensor is left, although the graph that was captured into it exists.

        The graph gives its claim on the pool back when it goes, and finds one to be given back. Raises `InternalError` if
        somebody captures all the time.
        """
        with turns.taken_once():
            # Ours and the graph's, which it keeps until it is destroyed.
            self._release(claims=2)
            for _ in range(_MOST_TRIES):
                if emptied():
                    self.is_forgotten = True
                    self._claim()
                    return
                time.sleep(_SECONDS_BETWEEN)
        raise InternalError("torch does not give a pool back: somebody captures all the time")

    def forget(self) -> bool:
        """The same once the graph is gone, without waiting; whether it could be done now. It cannot while a tensor is left."""
        # Nobody waits for the turn here: the caller has the lane's lock, for which whoever has the turn may wait.
        is_mine = turns.is_mine
        if not self.is_forgotten and not self.holds_tensors() and (is_mine or turns.take_if_free()):
            try:
                self._release(claims=1)
                self.is_forgotten = emptied()
            finally:
                if not is_mine:
                    turns.give_back()
        return self.is_forgotten

    def _release(self, *, claims: int) -> None:
        """Give all claims on the pool back."""
        if self._made is None:
            return
        self._claim()  # so that the destructor does not give the last one back, which ends the process if it cannot
        self._made = None
        for _ in range(claims):
            allocator.release_pool(self._index, self.token)

    def _claim(self) -> None:
        allocator.begin_allocating_to_pool(self._index, self.token)
        allocator.end_allocating_to_pool(self._index, self.token)


def give_back_cache(device: torch.device) -> None:
    """Give memory back that work used when it ran as it is: its scratch is about to be made once more, for good."""
    if torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device) > _MOST_BYTES_CACHED:
        with turns.taken_once():
            emptied()


def emptied() -> bool:
    """Give cached memory of torch's back; whether that was possible, as it is not while somebody captures."""
    try:
        torch.cuda.empty_cache()
    except RuntimeError:
        return False
    return True

"""Pool tokens: which recordings may use each other's dead memory. A token is a pair of numbers, and allocates nothing."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import torch

from treeplay.device.host.tape import HostTape
from treeplay.errors import ArgumentTypeError, UsageError
from treeplay.graphs.cuda import check_present
from treeplay.torch_seam import allocator
from treeplay.torch_seam.allocator import Pool

_numbers = itertools.count(1)


def new_pool() -> Pool:
    """A token that no other call gives. torch's own where it has them, so that `torch.cuda` takes it too."""
    return allocator.new_pool_token() if allocator.is_built() else (0, next(_numbers))


def graph_pool_handle(device: torch.device | str | None = None) -> Pool:
    """A new token for recordings that may share memory. It allocates nothing, and serves on every device.

    With `device`, also checks that there is such a device to use it on.
    """
    if device is not None and torch.device(device).type == "cuda":
        check_present()
    elif device is not None and torch.device(device).type != "cpu":
        raise UsageError(f"device: recordings are made on CUDA devices and on the CPU, found {device}")
    return new_pool()


def checked_pool(pool: Any) -> Pool | None:
    """`pool` if it can be one; `ArgumentTypeError` otherwise."""
    if pool is None:
        return None
    if isinstance(pool, tuple) and len(pool) == 2 and all(isinstance(part, int) for part in pool):
        return pool
    raise ArgumentTypeError(
        f"pool: expected a token of graph_pool_handle() or of Graph.pool(), found {type(pool).__name__}"
    )


class HostPools:
    """Which tapes lie in which pool, as long as they live. On the host a shared pool shares the account, not memory."""

    def __init__(self) -> None:
        self._tapes: dict[Pool, weakref.WeakSet[HostTape]] = {}

    def claim(self, pool: Pool, tape: HostTape) -> None:
        """Note that `tape` is recorded in `pool`."""
        self._tapes = {token: tapes for token, tapes in self._tapes.items() if len(tapes)}
        self._tapes.setdefault(pool, weakref.WeakSet()).add(tape)

    def size_bytes(self, pool: Pool) -> int:
        """The memory that all recordings of a pool hold."""
        return sum(tape.size_bytes for tape in self._tapes.get(pool, ()))


host_pools = HostPools()

"""Everything that holds recordings, whoever made it, so that all of it can be told to forget them."""

from __future__ import annotations

import weakref
from typing import Protocol

from treeplay.locks import shared_lock


class Holder(Protocol):
    """A jitted program, a graph of `torch.compile`, a graphed callable."""

    def reset(self) -> None:
        """Give back what is recorded; the next call is a first call."""


_holders: weakref.WeakSet[Holder] = weakref.WeakSet()
_lock = shared_lock()


def register(holder: Holder) -> None:
    """Have `holder` told by `reset_all` as long as it lives."""
    with _lock:
        _holders.add(holder)


def reset_all() -> None:
    """Tell all holders."""
    with _lock:
        holders = list(_holders)
    for holder in holders:
        holder.reset()

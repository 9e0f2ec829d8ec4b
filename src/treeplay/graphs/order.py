"""When may memory of a pool still be read? Recordings of one pool use each other's dead memory.

    captured    F1 ── F2 ── F3 ── B3 ── B2 ── B1            positions 0..5
    F2's saved    ·    [────────────────[                    alive when F3 and B3 were captured, dead when F1 and B2 were

So a run of F3 or B3 leaves what F2 saved for its backward alone. A run of F1, B2, B1, or of F2 itself, may overwrite it. The
same rule with an open end holds for outputs, which are kept as long as the recording.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch

from treeplay.device.cuda.lane import Lane
from treeplay.locks import shared_lock
from treeplay.torch_seam.allocator import native
from treeplay.values.location import Location


class ReplayRun(NamedTuple):
    """One replay: whose it is, which call of it, and from which line if that is known. Call 0 is its making."""

    label: str
    call: int
    is_backward: bool = False
    where: Location | None = None

    def __str__(self) -> str:
        if self.call == 0:
            return f"the making of {self.label}"
        start = "the backward of call" if self.is_backward else "call"
        return f"{start} {self.call} of {self.label}" + (f" ({self.where})" if self.where else "")


class Ticket(NamedTuple):
    """A claim on memory that run number `since` wrote, alive from capture `start` to before capture `end`."""

    order: PoolOrder
    start: int
    end: int | None
    since: int

    def spoiler(self) -> ReplayRun | None:
        """The run that may have overwritten it, or None while it is whole."""
        return self.order.spoiler(self)


class PoolOrder:
    """The captures of one pool in order, and when each last ran. `lock` is held while a replay is issued."""

    def __init__(self, device: torch.device) -> None:
        self.lock = shared_lock()
        # Not the device's lane: memory of other pools is apart, and only replays of this one wait for each other.
        self._lane = Lane(device) if device.type == "cuda" else None
        self._current_stream = native("_cuda_getCurrentRawStream") if self._lane is not None else None
        self._clock = 0
        self._times: list[int] = []
        self._runs: list[tuple[str, int, bool, Location | None]] = []
        self._outputs: list[weakref.ref[Kept] | None] = []
        self._has_aliases = False

    def place(self, aliased: Kept | None = None) -> int:
        """The position of a capture just made, which may have spoiled what is pending.

        `aliased` are its static outputs if users get the memory itself.
        """
        with self.lock:
            self._clock += 1
            self._times.append(self._clock)
            self._runs.append(ReplayRun("another recording of the same pool", 0))
            self._outputs.append(weakref.ref(aliased) if aliased is not None else None)
            self._has_aliases = self._has_aliases or aliased is not None
            return len(self._times) - 1

    def enter(self) -> None:
        """Before a replay touches the pool: let the current stream wait for the last one, if that was on another."""
        if self._lane is not None and self._current_stream is not None:
            stream = self._current_stream(self._lane.device.index)
            if stream != self._lane.stream:
                self._lane.order(stream)

    def ran(self, position: int, run: tuple[str, int, bool, Location | None]) -> int:
        """Note that the capture at `position` ran just now, by the fields of a `ReplayRun`; returns the time."""
        self._clock += 1
        self._times[position] = self._clock
        self._runs[position] = run
        return self._clock

    def spoiler(self, ticket: Ticket) -> ReplayRun | None:
        """The last run outside of the ticket's life, if there was one since."""
        if self._clock == ticket.since:  # nothing has run since
            return None
        with self.lock:
            outside = [*range(ticket.start + 1)]
            if ticket.end is not None:
                outside += range(ticket.end, len(self._times))
            last = max(outside, key=self._times.__getitem__)
            return ReplayRun(*self._runs[last]) if self._times[last] > ticket.since else None

    def overwritten_by(self, position: int) -> list[torch.Tensor]:
        """Outputs in users' hands that a run of the capture at `position` may overwrite: its own, and later captures'."""
        if not self._has_aliases:
            return []
        kept = (reference() for reference in self._outputs[position:] if reference is not None)
        return [tensor for item in kept if item is not None for tensor in item.tensors]


class Kept:
    """Static outputs of one capture that are in users' hands; owned by its recording."""

    __slots__ = ("__weakref__", "tensors")

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)


_orders: weakref.WeakValueDictionary[Hashable, PoolOrder] = weakref.WeakValueDictionary()
_making = shared_lock()


def order_of(pool: Hashable, device: torch.device) -> PoolOrder:
    """The order of a pool on a device; it lives as long as a recording of it that was wrapped."""
    with _making:
        order = _orders.get((pool, device))
        if order is None:
            order = _orders[pool, device] = PoolOrder(device)
        return order

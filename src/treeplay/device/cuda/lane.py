"""What the recordings of one GPU share: scratch memory, and the order of replays that sharing it needs.

Two recordings of one pool use the same scratch memory, so their replays must not overlap. On one stream they cannot; a
replay on another stream than the last one first waits for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from treeplay.device.cuda import driver
from treeplay.device.cuda.capturing.streams import index_of
from treeplay.device.cuda.memory.lent import LentScratch, PlainRun
from treeplay.device.cuda.memory.pool import give_back_cache
from treeplay.device.cuda.memory.scratch import Scratch
from treeplay.device.cuda.memory.space import AddressSpace, can_be_made
from treeplay.device.turns import turns
from treeplay.device.use import Use, bytes_together, dearer
from treeplay.errors import InternalError
from treeplay.locks import shared_lock
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.relocate.memory import merged
from treeplay.settings import settings
from treeplay.torch_seam import allocator
from treeplay.torch_seam.allocator import Pool
from treeplay.values.nodes import Allocation

_LEAST_BYTES_LENT = 16 << 20


class Closable(Protocol):
    """Addresses with an owner."""

    def close(self) -> bool:
        """Give them back, when nothing that uses them runs any more. False: it has to be called once more."""


_Closing = list[tuple[torch.cuda.Event | None, Closable]]


class Unplaced(Exception):
    """A call cannot be launched: a tensor lies where the graph cannot read it, the graph has gone, or the stream is being
    captured. The call runs as it is."""


class LaneMember(Protocol):
    """A recording, as the lane counts it. `launches` since memory was last looked at; `free` gives it all back."""

    launches: int
    is_held: bool

    @property
    def use(self) -> Use:
        """How much it is used."""

    @property
    def blocks(self) -> Sequence[Allocation]:
        """Its scratch in the pool, if it lies there."""

    @property
    def own_bytes(self) -> int: ...

    @property
    def usual_bytes(self) -> int: ...

    @property
    def scratch_bytes(self) -> int: ...

    def free(self) -> None: ...


class Lane:
    """The pool of one device and the stream of its last replay. `lock` is held while a replay is issued."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lock = shared_lock()
        self.stream: int | None = None  # of the last replay, as the driver's handle
        self._pool: Pool | None = None
        self._users = 0
        # Weakly: a lane lives as long as the process, a recording as long as its program.
        self._held: list[weakref.ref[LaneMember]] = []
        self._launches = 0  # of all, as far as they were looked at
        self.scratch = Scratch(device.index)
        self._closing: _Closing = []  # each as soon as its event is done

    def enter(self) -> Pool:
        """The pool for one more graph. An emptied pool is not used again: its memory is on its way back."""
        with self.lock:
            if self._pool is None:
                self._pool = allocator.new_pool_token()
            self._users += 1
            return self._pool

    def leave(self) -> None:
        """A graph has gone."""
        with self.lock:
            self._users -= 1
            if self._users == 0:
                self._pool = None

    def address_space(self) -> AddressSpace | None:
        """Addresses for one more capture; None where there is no such thing."""
        self._close_what_is_done()
        return AddressSpace(self.scratch) if can_be_made(self.scratch.index) else None

    def run_on_scratch(self, run: PlainRun) -> Sequence[torch.Tensor]:
        """What `run` gives. It allocates in the scratch of recordings, if there is enough of that to be worth it."""
        # The turn first: whoever has the lock never waits for it (`AddressPool.forget`), or each could wait for the other.
        with turns.taken_once(), self.lock:
            self._close_what_is_done()
            if self.scratch.nbytes < _LEAST_BYTES_LENT:
                return run()
            give_back_cache(self.device)
            try:
                lent = LentScratch(self.scratch)
            except (torch.OutOfMemoryError, InternalError) as error:
                log_event("recordings", f"scratch is not lent: {error}")
                return run()
            try:
                self.order_current()
                return lent.run(run)
            finally:
                self.close(lent)

    def close(self, space: Closable) -> None:
        """Wait for the last replay, then close addresses. What cannot be closed yet is tried again later."""
        with self.lock:
            event = self._event()
            self._closing.append((event, space))
            if event is not None:
                with driver.relaxed():
                    event.synchronize()
        self._close_what_is_done()

    def _event(self) -> torch.cuda.Event | None:
        """An event that is done when the last replay is; None if its stream is being captured. Breaks no capture."""
        with driver.relaxed():
            if self.stream is not None and driver.is_capturing(self.stream):
                return None
            event = torch.cuda.Event()
            if self.stream is not None:  # else it is done at once
                event.record(stream_at(self.stream, self.device))
            return event

    def _close_what_is_done(self) -> None:
        with self.lock:
            waiting, self._closing = self._closing, []
            try:
                while waiting:
                    begun, space = waiting[0]
                    event = begun or self._event()
                    # Whatever is not done waits in the new list for the next time that anybody asks.
                    if event is None or not self._is_done(event) or not space.close():
                        self._closing.append((event, space))
                    del waiting[0]
            finally:
                self._closing += waiting  # after an exception: what raised, and what it kept from being asked

    def _is_done(self, event: torch.cuda.Event) -> bool:
        with driver.relaxed():
            return bool(event.query())

    def hold(self, newest: LaneMember) -> None:
        """Keep count of a recording, and let those go that are worth least while all together hold more than they may."""
        with self.lock:
            newest.use.shared = newest.scratch_bytes
            newest.use.nbytes = newest.usual_bytes + newest.scratch_bytes
            self._held.append(weakref.ref(newest))
            self._look()
            for held in sorted(self._alive(), key=lambda held: held.use.value(self._launches)):
                if self.held_bytes() <= settings.memory_budget_bytes:
                    break
                if held is not newest:
                    held.free()
                    counters.add("recordings dropped", "memory")

    def admits(self, use: Use, calls: int) -> bool:
        """Whether a recording that was let go, and was called so often since this was asked, is worth more than what would go
        for it."""
        with self.lock:
            self._look()
            self._launches += calls
            use.called(calls, self._launches)
            stay = dearer(use, [held.use for held in self._alive()], self._launches)
            return not stay or bytes_together([*stay, use]) <= settings.memory_budget_bytes

    def _look(self) -> None:
        """Note the launches since the last look."""
        for held in self._alive():
            launches, held.launches = held.launches, 0
            self._launches += launches
            held.use.called(launches, self._launches)

    def make_room(self) -> bool:
        """Let every recording go; whether there was one. They are recorded again when they are called."""
        with self.lock:
            held = self._alive()
            for one in held:
                one.free()
                counters.add("recordings dropped", "memory")
        if self._closing:
            torch.cuda.synchronize(self.device)
            self._close_what_is_done()
        return bool(held)

    def held_bytes(self) -> int:
        """What recordings hold now: the scratch memory that any of them uses counts once."""
        held = self._alive()
        blocks = union_bytes(block for one in held for block in one.blocks)
        return self.scratch.nbytes + blocks + sum(one.own_bytes for one in held)

    def _alive(self) -> list[LaneMember]:
        alive = [held for ref in self._held if (held := ref()) is not None and held.is_held]
        self._held = [weakref.ref(held) for held in alive]
        return alive

    def order(self, stream: int) -> None:
        """Make `stream`, the current one, wait for the last replay, which was on another.

        `Unplaced` while somebody captures it: what waits inside of a capture for work outside would break it.
        """
        if torch.cuda.is_current_stream_capturing():
            raise Unplaced
        if self.stream is not None:
            event = torch.cuda.Event()
            event.record(stream_at(self.stream, self.device))
            torch.cuda.current_stream(self.device).wait_event(event)
        self.stream = stream

    def order_current(self) -> None:
        """Make the current stream wait for the last replay, if that was on another."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        if stream != self.stream:
            self.order(stream)

    def keep_for_last_replay(self, tensor: torch.Tensor) -> None:
        """Keep the memory of a tensor that is let go from being reused before the last replay is done with it."""
        if self.stream is not None:
            # A program may be dropped while another one is traced in this thread: that trace is not to see it.
            with allocator.unobserved():
                tensor.record_stream(stream_at(self.stream, self.device))


def union_bytes(blocks: Iterable[Allocation]) -> int:
    """Bytes that are in at least one block."""
    return sum(end - start for start, end in merged((block.address, block.end) for block in blocks))


def stream_at(handle: int, device: torch.device) -> torch.cuda.Stream:
    """The stream with this handle."""
    return torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)


_lanes: dict[int, Lane] = {}
_making = shared_lock()


def lane_of(device: torch.device) -> Lane:
    """The lane of a device, made on first use; it lives as long as the process."""
    index = index_of(device)
    with _making:
        if index not in _lanes:
            _lanes[index] = Lane(torch.device("cuda", index))
        return _lanes[index]

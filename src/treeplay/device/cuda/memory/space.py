"""A range of addresses for one capture, with next to no memory behind them.

A capture executes nothing: it writes addresses down. So what is allocated while it lasts needs addresses that the driver
takes for memory of the device, and no more. The whole range is mapped to two small pieces of memory, over and over.

    range    | segment of torch's | segment | segment |        never used        |   decoys   |
    mapped   |  large  | s | s | s | s | s |  large  |                          | large  | s |

The range is a pool of torch's as long as the capture has tensors. When they have gone, torch forgets the pool, so that it does
not count as memory in use, and the addresses stay in the graph. What the graph needs memory for while it runs gets it then.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import addressof
from functools import cache

import torch

from treeplay.codegen.library import address_in
from treeplay.device.cuda.memory import mapping, native
from treeplay.device.cuda.memory.pages import Run, Span, pieces_of, plan_pages
from treeplay.device.cuda.memory.pool import AddressPool
from treeplay.device.cuda.memory.scratch import FILLER_PAGES, Scratch, Share
from treeplay.device.cuda.nodes.calls import function_address, maps_memory
from treeplay.errors import InternalError
from treeplay.observe.events import log_event
from treeplay.torch_seam import allocator

_FIRST, _SPAN = 0x2000_0000_0000, 0x3000_0000_0000  # below where systems put programs and libraries
# Not Python's own generator, which programs seed and draw from.
_chance = random.Random(0x7EE)


class AddressSpace:
    """Addresses of one device. Its owner calls `close`, after which none may be used."""

    def __init__(self, scratch: Scratch) -> None:
        index, unit = scratch.index, mapping.granularity(scratch.index)
        library = native.functions()
        if library is None:
            raise InternalError("an address space was asked for where none can be made")
        self._library, self._scratch, self._unit = library, scratch, unit
        # Twice as many as the device has memory, since results have theirs for themselves, and once more for decoys: addresses
        # cost nothing.
        memory = -(-torch.cuda.get_device_properties(index).total_memory // unit) * unit
        self._room = 2 * memory
        self._nbytes = self._room + memory
        with ExitStack() as undone:  # what is taken here goes back if anything after it raises
            self._filler = scratch.filler()
            undone.callback(scratch.give_back_filler)
            self.start = mapping.reserve(self._nbytes, _somewhere(unit))
            undone.callback(mapping.release_addresses, self.start, self._nbytes)
            take, give_back = (address_in(library, name) for name in ("take", "give_back"))
            self.pool = AddressPool(index, take, give_back)
            undone.pop_all()
        self._mapped = self.start  # up to here
        self._decoys = self.start + self._nbytes  # from here on
        self._access = mapping.access_to(index)
        self._share: Share | None = None
        self._is_open = True

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """For a block, in the turn to capture, torch's allocator takes the addresses of its pool from here."""
        # The library has one range for the whole process, so each turn sets it anew.
        self._library.use_range(
            self._mapped,
            self.start + self._room,
            *(word for pages in FILLER_PAGES for word in (pages * self._unit, self._filler[pages])),
            function_address("cuMemMap"),
            function_address("cuMemSetAccess"),
            addressof(self._access),
            function_address("cuThreadExchangeStreamCaptureMode"),
            _chance.getrandbits(32),
        )
        try:
            with _without_limit(self._scratch.index):
                yield
        finally:
            self._mapped = int(self._library.range_next())

    def room(self, nbytes: int) -> int:
        """The first of `nbytes` addresses that nothing else of the range has, for decoys."""
        size = -(-nbytes // self._unit) * self._unit
        start = self._decoys - size
        self._fill(start, size // self._unit)
        mapping.allow(start, size, self._scratch.index)
        self._decoys = start
        return start

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.start + self._nbytes

    @property
    def scratch_bytes(self) -> int:
        """Memory behind it that recordings share."""
        return self._share.nbytes if self._share is not None else 0

    def settle(self, spans: Iterable[Span] | None) -> bool:
        """Have torch forget the pool, and put shared memory behind `spans` of addresses, those that are never used at the same
        time behind the same; None: behind all of them, each by itself.

        False, and nothing is done: a tensor lies there that somebody keeps. What no span reaches stays mapped as it was:
        nothing that runs means it, and if something does after all it does no harm. Raises `torch.OutOfMemoryError`, and
        `InternalError` if torch does not forget it for a long time.
        """
        if self.pool.holds_tensors():
            return False
        self.pool.forget_with_graph()
        spans = [Span(self.start, self._mapped)] if spans is None else spans
        plan = plan_pages(self.start, self._mapped - self.start, spans, self._unit)
        if not plan.runs:
            return True
        # Before anything is unmapped: this raises where there is no memory, and then the range is as it was.
        self._share = self._scratch.share(plan.units)
        self._unmap_pool()
        for run in plan.runs:
            self._map(run)
        mapping.allow(self.start, self._mapped - self.start, self._scratch.index)
        return True

    def close(self) -> bool:
        """Give addresses and memory back, when nothing that uses them runs any more, and the graph is gone. False: it has to be
        called once more.

        Addresses of a tensor that somebody still keeps are not given back: torch would know two tensors by one address.
        """
        if not self._is_open:
            return True
        if not self.pool.forget():
            return False
        self._is_open = False
        self._unmap_pool()
        if self._decoys < self.start + self._nbytes:
            mapping.unmap(self._decoys, self.start + self._nbytes - self._decoys)
        mapping.release_addresses(self.start, self._nbytes)
        if self._share is not None:
            self._scratch.give_back(self._share)
        self._scratch.give_back_filler()
        return True

    def _unmap_pool(self) -> None:
        if self._mapped > self.start:
            mapping.unmap(self.start, self._mapped - self.start)
        self._mapped = self.start

    def _map(self, run: Run) -> None:
        if run.unit is not None and self._share is not None:
            for at, nbytes, memory in self._share.pieces(run.unit, run.start):
                mapping.map_memory(at, nbytes, memory)
                # Kept up to date with each piece: after a failure, `close` unmaps up to here.
                self._mapped = at + nbytes
            return
        self._fill(run.start, run.pages)
        self._mapped = run.start + run.pages * self._unit

    def _fill(self, start: int, pages: int) -> None:
        """Map what is only written down."""
        for size in pieces_of(pages, FILLER_PAGES):
            mapping.map_memory(start, size * self._unit, self._filler[size])
            start += size * self._unit


@contextmanager
def _without_limit(index: int) -> Iterator[None]:
    """For a block, torch takes what addresses it likes: without memory behind them, they would count for the limit of the
    process. What the graph needs memory for while it runs is held against the limit when it gets it."""
    limit = torch.cuda.get_per_process_memory_fraction(index)
    if limit >= 1.0:
        yield
        return
    torch.cuda.set_per_process_memory_fraction(1.0, index)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(limit, index)


def _somewhere(unit: int) -> int:
    """An address far from all others. Small ones, which the driver gives, have halves that look like any number."""
    return _FIRST + _chance.randrange(_SPAN // unit) * unit


@cache
def can_be_made(index: int) -> bool:
    """Whether a device has address spaces: it and its driver map memory, and there is a C compiler."""
    if not maps_memory() or not allocator.has_pools_of_ours() or native.functions() is None:
        return False
    try:
        mapping.try_out(index)
    except InternalError as error:
        log_event("recordings", f"captures take memory of their own: {error}")
        return False
    return True

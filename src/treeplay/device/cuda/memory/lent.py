"""The scratch of recordings, lent to work that runs as it is.

What takes the place of a recording runs once before it is captured. Scratch is dead between two launches, and none is issued
meanwhile; so what such a run allocates lies there, and not in memory of torch's beside it:

    memory        [32 MiB] [32 MiB] [8 MiB]        pieces that recordings share
    recording      used     used     used
    the run       | lent   | lent   | lent | more, as far as it needs more |

What is alive after the run gets memory of its own before the next launch writes there: results are copied out, and the pieces
of anything else that somebody keeps are copied and exchanged behind its addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof

import torch

from treeplay.codegen.library import address_in
from treeplay.device.cuda.memory import mapping, native
from treeplay.device.cuda.memory.pool import AddressPool
from treeplay.device.cuda.memory.scratch import Scratch
from treeplay.device.cuda.nodes.calls import function_address
from treeplay.errors import InternalError
from treeplay.torch_seam import allocator

PlainRun = Callable[[], Sequence[torch.Tensor]]


class LentScratch:
    """Addresses of one device with its scratch behind them. Its owner has the turn to capture, and calls `close`, after which
    none may be used. Raises `torch.OutOfMemoryError` and `InternalError`."""

    def __init__(self, scratch: Scratch) -> None:
        library, index = native.functions(), scratch.index
        if library is None:
            raise InternalError("scratch was to be lent where nothing can be mapped")
        unit = mapping.granularity(index)
        self._library, self._scratch = library, scratch
        self._nbytes = -(-torch.cuda.get_device_properties(index).total_memory // unit) * unit
        self._access, self._properties = mapping.access_to(index), mapping.properties_of(index)
        self.start = self.end = mapping.reserve(self._nbytes)
        self._share = scratch.share_of_all()
        self._pieces: list[tuple[int, int]] = []  # address and bytes of each that is lent
        try:
            for at, nbytes, memory in self._share.pieces(0, self.start):
                mapping.map_memory(at, nbytes, memory)
                self._pieces.append((at, nbytes))
                self.end = at + nbytes
            mapping.allow(self.start, self.end - self.start, index)
            take, give_back = (address_in(library, name) for name in ("take_memory", "give_back"))
            self.pool = AddressPool(index, take, give_back)
        except BaseException:
            self._give_back()
            raise
        self._is_open = True

    def __contains__(self, address: int) -> bool:
        return self.start <= address < self.end

    def run(self, run: PlainRun) -> list[torch.Tensor]:
        """What `run` gives, in memory of its own; what it allocates in this thread lies here while it runs. Called once."""
        try:
            with self._in_use():
                found = list(run())
            return self._copied_out(found)
        finally:
            # Else this very list would keep tensors that lie here, and they would be taken for survivors.
            found = []
            self._part_from_survivors()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        index, token = self._scratch.index, self.pool.token
        self._library.use_memory(
            self.start,
            self.end,
            self.start + self._nbytes,
            function_address("cuMemCreate"),
            addressof(self._properties),
            function_address("cuMemMap"),
            function_address("cuMemSetAccess"),
            addressof(self._access),
            function_address("cuMemRelease"),
        )
        allocator.begin_allocating_to_pool(index, token)
        try:
            yield
        finally:
            allocator.end_allocating_to_pool(index, token)
            # `begin_allocating_to_pool` has claimed the pool once more: with that claim it could never be forgotten.
            allocator.release_pool(index, token)
            self.end = int(self._library.memory_end())

    def _copied_out(self, found: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The same tensors, those that lie here in copies of their storages: what shared memory still does."""
        storages: dict[int, torch.UntypedStorage] = {}
        copies = []
        for tensor in found:
            storage = tensor.untyped_storage()
            if tensor.is_cuda and storage.data_ptr() in self:
                copy = storages.get(storage._cdata)
                if copy is None:
                    copy = storages[storage._cdata] = storage.clone()
                view = (tensor.storage_offset(), tensor.shape, tensor.stride())
                tensor = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(copy, *view)
            copies.append(tensor)
        return copies

    def _part_from_survivors(self) -> None:
        """Give what is still alive here memory of its own, at the addresses that it has."""
        if not self.pool.holds_tensors():
            return
        allocator.clear_library_workspaces()  # which are wanted by the next product, not by anything that has run
        alive = self.pool.spans_in_use()
        for at, nbytes in self._pieces:
            if any(start < at + nbytes and end > at for start, end in alive):
                self._exchange(at, nbytes)

    def _exchange(self, at: int, nbytes: int) -> None:
        """Put a copy of a piece's memory behind its addresses."""
        index = self._scratch.index
        memory, elsewhere = mapping.make_memory(index, nbytes), mapping.reserve(nbytes)
        mapping.map_memory(elsewhere, nbytes, memory)
        mapping.allow(elsewhere, nbytes, index)
        device = torch.device("cuda", index)
        with allocator.unobserved(), torch.no_grad():
            was, copy = (
                torch.empty(0, dtype=torch.uint8, device=device).set_(allocator.storage_at(place, device, nbytes))
                for place in (at, elsewhere)
            )
            copy.copy_(was)
            # The driver unmaps at once, also what a copy still reads.
            torch.cuda.synchronize(index)
        mapping.unmap(elsewhere, nbytes)
        mapping.release_addresses(elsewhere, nbytes)
        mapping.unmap(at, nbytes)
        mapping.map_memory(at, nbytes, memory)
        mapping.allow(at, nbytes, index)
        mapping.release_memory(memory)  # it stays as long as it is mapped

    def close(self) -> bool:
        """Give addresses and memory back, when nothing that uses them runs any more. False: it has to be called once more, as
        long as somebody keeps a tensor that lies here."""
        if not self._is_open:
            return True
        if not self.pool.forget():
            return False
        self._is_open = False
        self._give_back()
        return True

    def _give_back(self) -> None:
        if self.end > self.start:
            mapping.unmap(self.start, self.end - self.start)
        mapping.release_addresses(self.start, self._nbytes)
        self._scratch.give_back(self._share)

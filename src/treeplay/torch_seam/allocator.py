"""The private parts of torch that the CUDA device uses, in one place, each covered by a test that it exists and behaves.

On builds without CUDA some of these names exist as dummies that raise when called: ask `is_built` first.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

from treeplay.errors import InternalError

Pool = tuple[int, int]


def is_built() -> bool:
    """Whether this torch was built with CUDA."""
    return bool(torch.backends.cuda.is_built())


@contextmanager
def unobserved() -> Iterator[None]:
    """For a block, no mode of this thread sees what operators are called, and none redirects them.

    It may begin anywhere, since something may be dropped anywhere: in the midst of an operator on fakes, say, where torch
    sends all operators to those that have no data."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch._C._PreserveDispatchKeyGuard():
        torch._C._set_meta_in_tls_dispatch_include(False)
        yield


def clear_library_workspaces() -> None:
    """Free the scratch memory that cuBLAS keeps per handle and stream; it is made anew where it is next needed."""
    torch._C._cuda_clearCublasWorkspaces()


def give_back_pinned_memory() -> None:
    """Give cached pinned host memory back to the system."""
    torch._C._host_emptyCache()


def end_capture(graph: torch.cuda.CUDAGraph) -> None:
    """End the capture on the current stream, with torch's bookkeeping: allocation, generators, the graph's state."""
    torch._C._CUDAGraph.capture_end(graph)


def new_pool_token() -> Pool:
    """A token of a pool that nobody has."""
    first, second = torch.cuda.graph_pool_handle()
    return int(first), int(second)


def begin_allocating_to_pool(index: int, pool: Pool) -> None:
    """Give what this thread allocates on a device to a pool, and claim it once."""
    torch._C._cuda_beginAllocateCurrentThreadToPool(index, pool)


def end_allocating_to_pool(index: int, pool: Pool) -> None:
    """Stop giving a device's allocations to a pool; an error if that was not so."""
    torch._C._cuda_endAllocateToPool(index, pool)


def release_pool(index: int, pool: Pool) -> None:
    """Take back one claim on a pool of a device. Its memory goes when the last claim and the last tensor have gone."""
    torch._C._cuda_releasePool(index, pool)


def has_pools_of_ours() -> bool:
    """Whether this torch has pools whose memory somebody else provides."""
    return is_built() and hasattr(torch._C, "_cuda_customAllocator") and hasattr(torch.cuda, "MemPool")


def allocator_of(take: int, give_back: int) -> Any:
    """An allocator made of two native functions, by their addresses: `void *take(size_t, int device, stream)` and
    `void give_back(void *, size_t, int device, stream)`. Torch calls them with the lock of its own allocator in its hands."""
    return torch._C._cuda_customAllocator(take, give_back)


def pool_of(pool: torch.cuda.MemPool) -> Pool:
    """The token of a pool."""
    first, second = pool.id
    return int(first), int(second)


def has_context(index: int) -> bool:
    """Whether this process has a CUDA context on a device, without making one."""
    return is_built() and bool(torch._C._cuda_hasPrimaryContext(index))  # type: ignore[attr-defined]


_NATIVE = ("_cuda_getCurrentRawStream", "_tensors_data_ptrs_at_indices_equal", "_storage_Use_Count")


def native(name: str) -> Callable[..., Any]:
    """A native function that a launch calls without anything in between.

    `_cuda_getCurrentRawStream(index) -> int`: the handle of a device's current stream.
    `_tensors_data_ptrs_at_indices_equal(tensors, addresses, indices) -> bool`: whether these tensors lie there.
    `_storage_Use_Count(storage) -> int`: how many tensors (and wrappers) share a storage.
    """
    if name not in _NATIVE:
        raise InternalError(f"{name} is not among the native functions that are tested for")
    found: Callable[..., Any] = getattr(torch._C, name)
    return found


def is_recording_history() -> bool:
    """Whether somebody records the allocator's history."""
    return bool(torch._C._cuda_isHistoryEnabled())


def start_history(max_entries: int) -> None:
    """Record the allocator's history from here on, without tracebacks; what was recorded before is dropped."""
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=max_entries, clear_history=True)


def stop_history() -> None:
    """Record the allocator's history no longer."""
    torch.cuda.memory._record_memory_history(None)


@dataclass(frozen=True, slots=True)
class AllocatorState:
    """What torch's allocator tells of all devices.

    `segments` have `address`, `total_size` and `segment_pool_id`. `histories` has, for each device, what was recorded of it:
    actions with `action`, `addr`, `size` and `stream`.
    """

    segments: list[dict[str, Any]]
    histories: list[list[dict[str, Any]]]

    def segments_of(self, pool: Pool) -> list[dict[str, Any]]:
        """The segments of one pool."""
        return [segment for segment in self.segments if tuple(segment["segment_pool_id"]) == tuple(pool)]


def allocator_state() -> AllocatorState:
    """What torch's allocator has now, and what was recorded of it.

    Asked for everything, although one pool would do: torch takes away references to the numbers in a pool's token that it was
    never given (pytorch#196366), and a number whose last reference is gone corrupts all that come after it.
    """
    told: dict[str, Any] = torch._C._cuda_memorySnapshot(None)
    return AllocatorState(told["segments"], told["device_traces"])


def note_allocations(note: str) -> None:
    """Have the allocator note this in its history beside each allocation from here on, of any thread."""
    torch._C._cuda_setMemoryMetadata(note)


def noted_allocations() -> str:
    """What the allocator notes beside allocations by now."""
    return str(torch._C._cuda_getMemoryMetadata())


def storage_at(address: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """A storage over memory that it does not own."""
    made: Any = torch._C._construct_storage_from_data_pointer(address, device, nbytes)
    return cast(torch.UntypedStorage, made)


def replay_of(graph: torch.cuda.CUDAGraph) -> Callable[[], None]:
    """A graph's launch, bound without the Python method around it."""
    native_replay: Callable[[], None] = torch._C._CUDAGraph.replay.__get__(graph)
    return native_replay


def empty_on_gpu() -> Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], torch.Tensor]:
    """Makes an empty tensor of a shape, strides and dtype on the current GPU, without a dispatch."""
    guards: Any = torch._C._dynamo.guards
    made: Callable[..., torch.Tensor] = guards._empty_strided_cuda
    return made


Counts = tuple[int, int, int, int]

_kept: Any = None
_storage: Any = None
_memory = 0


@functools.cache
def counts_of_ours() -> tuple[Counts, Counts]:
    """What the counts of a tensor are that only a global name of ours refers to, and of one that is a gradient besides.

    References in Python (the question's own among them), to the tensor in torch, to its storage in torch, and to the storage
    in Python, where a name of ours refers to it too. How many Python's
    wrappers add to each is torch's affair and differs between its releases, so it is tried out.
    """
    global _kept, _storage, _memory
    leaf = torch.empty(1, requires_grad=True)
    _kept = torch.empty(1)
    _storage = _kept.untyped_storage()
    _memory = _storage._cdata
    loose = _count()
    leaf.grad = _kept
    in_slot = _count()
    _kept = _storage = None
    return loose, in_slot


def _count() -> Counts:
    users = torch._C._storage_Use_Count(_memory)
    return sys.getrefcount(_kept), _kept._use_count(), users, sys.getrefcount(_storage)

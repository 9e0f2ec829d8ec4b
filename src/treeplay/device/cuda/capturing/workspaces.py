"""Scratch memory of cuBLAS for captures that have a pool of their own.

cuBLAS wants a workspace per handle and stream, 32 MiB of it on a large GPU, and few kernels touch it. A capture is lent one
that lies in a pool apart; afterwards the nodes are searched for an address in it:

    lend ─▶ capture ─▶ no node holds an address in it   ─▶ lent to the next capture
                  └──▶ some node does, or nobody can tell ─▶ kept until that recording dies

So recordings never share scratch memory that they use, and pay only for what they use. In a pool that recordings share none
of this is needed: there the workspace is allocated, and reused, like any other memory of the pool.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from dataclasses import dataclass

import torch

from treeplay.device.cuda.nodes.reading import read_nodes
from treeplay.errors import InternalError
from treeplay.torch_seam import allocator
from treeplay.values.nodes import GraphNode, Other


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where one lies, in which pool, and on which stream it may be lent."""

    index: int
    stream: int
    pool: tuple[int, int]
    start: int
    end: int

    def is_held_by(self, graph: int) -> bool:
        """Whether a raw graph has an address in it; also if a node cannot be read."""
        try:
            return any(self._is_in(node) for node in read_nodes(graph))
        except (InternalError, AttributeError, OSError):
            return True

    def _is_in(self, node: GraphNode) -> bool:
        if isinstance(node, Other):
            return node.is_opaque
        return any(holds_address(buffer, self.start, self.end) for buffer in node.buffers)


def holds_address(buffer: bytes, start: int, end: int) -> bool:
    """Whether eight bytes anywhere in `buffer` are an address from `start` up to `end`."""
    # A workspace is small, so few values of the upper five bytes occur: each is searched for, instead of a loop over words.
    for high in range(start >> 24, (end - 1 >> 24) + 1):
        pattern = high.to_bytes(5, "little")
        found = buffer.find(pattern, 3)
        while found != -1:
            if start <= int.from_bytes(buffer[found - 3 : found + 5], "little") < end:
                return True
            found = buffer.find(pattern, found + 1)
    return False


class Workspaces:
    """The spare ones, at most one per stream. Used by whoever has the turn to capture."""

    def __init__(self) -> None:
        self._spare: dict[tuple[int, int], Workspace] = {}
        self._busy: set[int] = set()  # devices on which cuBLAS has been used: on others nothing is lent
        self._threads = threading.local()  # which have made a handle: each has its own

    def make_handle(self, index: int) -> None:
        """Have cuBLAS make this thread's handle for the current device, which cannot be done inside of a capture."""
        made: set[int] = self._threads.__dict__.setdefault("made", set())
        if index in made:
            return
        self.clear(index)
        # Cleared once more below, and not by `clear`: the workspace made here does not show that the program uses cuBLAS.
        with contextlib.suppress(torch.OutOfMemoryError):  # no room for its workspace, which is wanted after the handle
            torch.cuda.current_blas_handle()
        allocator.clear_library_workspaces()
        made.add(index)

    def clear(self, index: int) -> None:
        """Free all workspaces that cuBLAS holds, and note whether it has any on this device."""
        if index in self._busy:
            allocator.clear_library_workspaces()
            return
        before = torch.cuda.memory_allocated(index)
        allocator.clear_library_workspaces()
        if torch.cuda.memory_allocated(index) < before:
            self._busy.add(index)

    def lend(self, index: int) -> Workspace | None:
        """Give this thread's cuBLAS a workspace on the current stream; None if cuBLAS is not in use."""
        if index not in self._busy:
            return None
        stream = torch.cuda.current_stream(index).cuda_stream
        spare = self._spare.pop((index, stream), None)
        pool = spare.pool if spare is not None else allocator.new_pool_token()
        allocator.begin_allocating_to_pool(index, pool)
        try:
            torch.cuda.current_blas_handle()
        finally:
            allocator.end_allocating_to_pool(index, pool)
        if spare is not None:
            allocator.release_pool(index, pool)  # claimed once more by the allocation
            return spare
        return self._made(index, stream, pool)

    def keep(self, workspace: Workspace, graph: torch.cuda.CUDAGraph) -> None:
        """`graph` uses it: it goes when the graph dies."""
        # Not at exit: the process's end gives all back.
        weakref.finalize(graph, allocator.release_pool, workspace.index, workspace.pool).atexit = False

    def take_back(self, workspace: Workspace) -> None:
        """Nobody uses it: it is lent to the next capture, or goes where that stream has a spare one."""
        key = workspace.index, workspace.stream
        if self._spare.setdefault(key, workspace) is not workspace:
            allocator.release_pool(workspace.index, workspace.pool)

    def _made(self, index: int, stream: int, pool: tuple[int, int]) -> Workspace | None:
        segments = allocator.allocator_state().segments_of(pool)
        if len(segments) != 1:
            allocator.release_pool(index, pool)
            return None
        start = int(segments[0]["address"])
        return Workspace(index, stream, pool, start, start + int(segments[0]["total_size"]))


workspaces = Workspaces()

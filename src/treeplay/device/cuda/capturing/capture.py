"""Stream capture on one CUDA device: what must hold before, what is put back after, and what a failure leaves.

    turn ─▶ device ─▶ drained, caches given back ─▶ side stream ─▶ workspaces cleared ─▶ begin ─▶ body
    and back, each step attempted even if another fails

A capture that failed is ended in such a way that torch's own bookkeeping (allocation into the pool, the generators' capture
state) comes to its end too; then the graph is reset, so that the pool's memory goes with the last tensor in it.

Scratch memory of libraries: cuBLAS keeps one workspace per handle and stream, and kernels hold its address. It is cleared
before the capture, so that the capture allocates its own inside of its pool (or is lent one: `workspaces`), and cleared
after, so that no eager work and no other recording is handed that memory. The block stays in the recording's pool as long as
the pool is claimed.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from treeplay.device.cuda import broken, driver
from treeplay.device.cuda.capturing import streams
from treeplay.device.cuda.capturing.workspaces import Workspace, workspaces
from treeplay.device.modes import check_error_mode
from treeplay.device.turns import turns
from treeplay.errors import UsageError
from treeplay.sandbox.collection import collecting_within, no_collection
from treeplay.sandbox.teardown import Teardown
from treeplay.torch_seam import allocator
from treeplay.torch_seam.allocator import Pool


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph,
    *,
    device: torch.device,
    pool: Pool | None = None,
    stream: torch.cuda.Stream | None = None,
    error_mode: str = "thread_local",
    collect_garbage: bool = False,
    gives_back_caches: bool = True,
    beginning: AbstractContextManager[Any] | None = None,
) -> Iterator[None]:
    """Capture the device work of the body into `graph`, which must be empty.

    Takes the process-wide turn and makes `stream` (by default the device's one side stream) current, after what was current.
    With `gives_back_caches` the device is drained and cached memory given back first, which makes room but takes
    milliseconds. `beginning` is entered when the turn is taken, and left with it. Raises `CaptureFailed` if CUDA cannot
    capture the body; the body's own exceptions propagate as they are. After any failure the stream and the device are those
    of before, and `graph` is empty again.
    """
    check_error_mode(error_mode)
    undo = Teardown()
    try:
        take_turn()
        undo.add("giving the turn back", turns.give_back)
        if beginning is not None:
            beginning.__enter__()
            undo.add("leaving what it began with", partial(beginning.__exit__, None, None, None))
        index = _make_current(device, stream, undo, collect_garbage, gives_back_caches)
        # Garbage may hold other recordings, and destroying one breaks a capture.
        for collecting in (no_collection(), collecting_within(driver.relaxed)):
            collecting.__enter__()
            undo.add("collecting garbage as before", partial(collecting.__exit__, None, None, None))
        # In a pool that recordings share, cuBLAS's workspace is memory like any other: none is lent (`workspaces`).
        lends = gives_back_caches and pool is None
        capture = Capture(graph, index, pool=pool, error_mode=error_mode, lends_workspace=lends)
        capture.begin()
    except BaseException as error:
        undo.run(error)
        raise
    try:
        yield
    except BaseException as error:
        failure = broken.broken_capture(error)
        # Steps run last first: the capture's stream is made current before anything is ended on it.
        undo.add("abandoning the capture", capture.abandon)
        undo.add("returning to the capture's stream", capture.make_current)
        undo.run(failure or error)
        if failure is not None:
            raise failure from error
        raise
    # As above: back to the stream first, which the body may have left.
    undo.add("ending the capture", capture.end)
    undo.add("returning to the capture's stream", capture.make_current)
    undo.finish()


class Capture:
    """One capture on the current stream, from begin to end. The caller has the turn and keeps the stream current."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        index: int,
        *,
        pool: Pool | None,
        error_mode: str,
        lends_workspace: bool = False,
    ) -> None:
        self.graph = graph
        self.index = index
        # A token of our own: torch does not tell that of a private pool before the capture has ended.
        self.pool: Pool = pool if pool is not None else allocator.new_pool_token()
        self.error_mode = error_mode
        self.stream = torch.cuda.current_stream(index)
        self._others = allocations_elsewhere(index)
        self._lends_workspace = lends_workspace
        self._workspace: Workspace | None = None

    def begin(self) -> None:
        """Begin. After a failure nothing is captured, and nothing allocated into the pool."""
        streams.refuse_default(self.stream)
        workspaces.clear(self.index)
        self._workspace = workspaces.lend(self.index) if self._lends_workspace else None
        try:
            self.graph.capture_begin(pool=self.pool, capture_error_mode=self.error_mode)  # type: ignore[arg-type]
        except BaseException as error:
            self._undo_begin(error)
            raise

    def make_current(self) -> None:
        """Make the stream of the capture current again, if the body has left another one."""
        if torch.cuda.current_stream(self.index) != self.stream:
            torch.cuda.set_stream(self.stream)

    def end(self) -> None:
        """End, so that the graph can be replayed; `CaptureFailed` if the capture is broken."""
        # Asked while the capture lasts: once it has ended, its stream has no graph to ask for.
        captured = driver.captured_graph(self.stream.cuda_stream)
        is_empty = captured is not None and driver.count_nodes(captured) == 0
        elsewhere = self._worked_elsewhere() if is_empty else []
        if elsewhere:
            failure = broken.worked_elsewhere(self.index, elsewhere)
            self._settle(failure)
            raise failure
        holds_workspace = self._holds_workspace(captured)
        try:
            self.graph.capture_end()
        except BaseException as error:
            failure_at_end = broken.explained_end(error)
            self._settle(failure_at_end or error)
            if failure_at_end is not None:
                raise failure_at_end from error
            raise
        self._leave_workspaces(is_kept=holds_workspace)

    def abandon(self) -> None:
        """End a capture that nobody wants, broken or not, and drop what it captured."""
        first = self._settle(None)
        if first is not None:
            raise first

    def _settle(self, first: BaseException | None) -> BaseException | None:
        """Leave nothing of this capture behind; returns the first error."""
        steps = Teardown()
        steps.add("leaving the workspaces", partial(self._leave_workspaces, is_kept=False))
        steps.add("resetting the graph", self.graph.reset)
        steps.add("leaving the capture", self._leave)
        if not _has_ended(self.graph):
            steps.add("ending the broken capture", self._end_quietly)
        return steps.run(first)

    def _end_quietly(self) -> None:
        """End the capture although it is broken.

        Torch stops half-way when CUDA reports a broken capture: it goes on allocating into the pool, and random
        generators stay in their capture state. So the stream is taken out of the broken capture and put into an empty one,
        which torch then ends in good order.
        """
        stream = self.stream.cuda_stream
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is empty
            driver.drop_capture(stream)
            driver.begin_capture(stream)
            allocator.end_capture(self.graph)

    def _leave(self) -> None:
        if driver.is_capturing(self.stream.cuda_stream):
            driver.drop_capture(self.stream.cuda_stream)

    def _undo_begin(self, error: BaseException) -> None:
        steps = Teardown()
        steps.add("leaving the workspaces", partial(self._leave_workspaces, is_kept=False))
        steps.add("leaving the pool", self._leave_pool)
        steps.add("leaving the capture", self._leave)
        steps.run(error)

    def _leave_pool(self) -> None:
        try:
            allocator.end_allocating_to_pool(self.index, self.pool)
        except RuntimeError:  # it had not come so far
            return
        allocator.release_pool(self.index, self.pool)

    def _holds_workspace(self, captured: int | None) -> bool:
        return self._workspace is not None and captured is not None and self._workspace.is_held_by(captured)

    def _leave_workspaces(self, *, is_kept: bool) -> None:
        """Take from cuBLAS what belongs to this capture, and settle whose the lent one is now."""
        workspace, self._workspace = self._workspace, None
        try:
            allocator.clear_library_workspaces()
        finally:
            if workspace is not None and is_kept:
                workspaces.keep(workspace, self.graph)
            elif workspace is not None:
                workspaces.take_back(workspace)

    def _worked_elsewhere(self) -> list[int]:
        now = allocations_elsewhere(self.index)
        return [index for index, count in now.items() if count != self._others.get(index, 0)]


def allocations_elsewhere(index: int) -> dict[int, int]:
    """How many allocations each other device in use has seen so far."""
    if torch.cuda.device_count() == 1:
        return {}
    others = (other for other in range(torch.cuda.device_count()) if other != index)
    return {
        other: int(torch.cuda.memory_stats(other).get("allocation.all.allocated", 0))
        for other in others
        if allocator.has_context(other)
    }


def _has_ended(graph: torch.cuda.CUDAGraph) -> bool:
    try:
        # Torch tells the pool only of a graph whose capture it has ended.
        graph.pool()
    except RuntimeError:
        return False
    return True


def take_turn() -> None:
    """Wait for the turn and take it; `UsageError` if the current stream is in a capture already, whoever's it is."""
    if streams.is_capturing_now() and not turns.is_mine:
        raise UsageError(
            "a capture was begun on a stream that somebody else is capturing (torch.cuda.graph, torch.compile, or a "
            "backward thread of an outer capture), and captures do not nest: end the outer one first"
        )
    turns.take()


def _make_current(
    device: torch.device,
    stream: torch.cuda.Stream | None,
    undo: Teardown,
    collect_garbage: bool,
    gives_back_caches: bool,
) -> int:
    """Make device and stream current, drained and with room if asked for; returns the device's number."""
    index = streams.index_of(device)
    before = torch.cuda.current_device()
    stream = streams.stream_for(stream, index)
    undo.add("restoring the device", lambda: torch.cuda.set_device(before))
    torch.cuda.set_device(index)
    if gives_back_caches:
        torch.cuda.synchronize(index)
    if collect_garbage:
        gc.collect()
    # Within the capture cuBLAS could not make this thread's handle.
    workspaces.make_handle(index)
    if gives_back_caches:
        workspaces.clear(index)
        torch.cuda.empty_cache()
        allocator.give_back_pinned_memory()
    outer = torch.cuda.current_stream(index)
    undo.add("restoring the stream", lambda: torch.cuda.set_stream(outer))
    stream.wait_stream(outer)
    torch.cuda.set_stream(stream)
    return index

"""One piece of work on its way to a graph.

    WARMING ── runs as it is: kernels compile, libraries set up ──▶ RECORDING ── captured ──▶ RECORDED: launched
                                                                         └── cannot be ──▶ PLAIN: runs as it is

Work that has run already begins with RECORDING. Each call's effects happen once whichever way it goes: a capture executes
nothing, and what follows it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch.cuda import is_current_stream_capturing as is_capturing

from treeplay.device.collection import no_collection
from treeplay.device.cuda.captured import Captured, capture_work
from treeplay.device.cuda.lane import Lane
from treeplay.device.cuda.poisoned import differences
from treeplay.device.protocol import Replay, Work
from treeplay.errors import Explained, InternalError, UsageError
from treeplay.facts.launch import LaunchFacts
from treeplay.observe import counters, warn_once
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import Unmarked, internal
from treeplay.settings import settings

Tensors = list[torch.Tensor]


class CudaRecording:
    """Callable like the work it records. Its owner takes turns; recordings of one device order themselves by the lane."""

    def __init__(self, work: Work, lane: Lane) -> None:
        self._work = work
        self._lane = lane
        self._captured: Captured | None = None
        self._listener: Callable[[Replay], None] = lambda replay: None
        self._unplaced_calls = 0
        self._stage: Replay = self._record if work.has_run else self._warm
        self._facts = LaunchFacts(str(lane.device), "warming")

    def __call__(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        return self._stage(tensors, numbers)

    def tell(self, listener: Callable[[Replay], None]) -> None:
        """Have `listener` told whenever there is another way to replay: the recording itself, or its launch function."""
        self._listener = listener

    def facts(self) -> LaunchFacts:
        """How it is launched by now."""
        return self._captured.facts() if self._captured is not None else self._facts

    def free(self) -> None:
        """Give the graph and its memory back; a later call starts anew."""
        if self._captured is not None:
            self._captured.free()
            self._captured = None
        self._stage = self._record
        self._listener(self)
        self._facts = replace(self._facts, stage="warming")

    def _warm(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        out = self._plain(tensors, numbers)
        self._stage = self._record
        return out

    def _plain(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """The work as it is. Its numbers lie in one place for all streams, so it keeps the order of replays."""
        if self._work.vector is None or is_capturing():
            return self._work.run(tensors, numbers)
        with self._lane.lock:
            stream = torch.cuda.current_stream(self._lane.device).cuda_stream
            if stream != self._lane.stream:
                self._lane.order(stream)
            return self._work.run(tensors, numbers)

    def _record(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        if is_capturing():  # somebody else's capture takes the work as it is
            return self._plain(tensors, numbers)
        try:
            with Unmarked():
                self._captured = self._capture(tensors, numbers)
        except UsageError:  # a capture is under way in this thread: the next call may find none
            return self._plain(tensors, numbers)
        except (Explained, torch.OutOfMemoryError) as reason:  # nothing has run
            self._give_up(reason)
            return self._plain(tensors, numbers)
        except Exception as error:
            return self._broken(error, tensors, numbers)
        self._stage = self._captured.launch
        self._listener(self._captured.launch)
        return self._captured.launch(tensors, numbers)

    def _broken(self, error: Exception, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """No graph came of a capture or a launch, and nothing has run: the work as it is. If that raises too, the exception is
        the program's own; else the error was ours, and the work runs as it is from now on."""
        out = self._plain(tensors, numbers)
        told = internal(error, "recording on a GPU")
        tell_internal(told, self._work.name)
        self._give_up(told)
        return out

    def _not_launched(self, error: Exception, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """A launch raised before the graph was launched."""
        if isinstance(
            error, (MemoryError, torch.OutOfMemoryError)
        ):  # the work as it is may need less, or raises the same
            counters.add("not launched", "out of memory")
            return self._plain(tensors, numbers)
        return self._broken(error, tensors, numbers)

    def _capture(self, tensors: Tensors, numbers: Sequence[float]) -> Captured:
        with no_collection():
            try:
                captured = capture_work(self._work, tensors, self._lane, self._unplaced, self._not_launched)
            except torch.OutOfMemoryError:
                if not self._lane.make_room():
                    raise
                captured = capture_work(self._work, tensors, self._lane, self._unplaced, self._not_launched)
        if settings.verify:
            try:
                wrong = differences(self._work, captured.launch, tensors, numbers)
            except BaseException:
                captured.free()
                raise
            if wrong:
                captured.free()
                raise InternalError(f"a launch with its tensors elsewhere gives another {', '.join(wrong)}")
        return captured

    def _unplaced(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """A tensor lies where the graph cannot read it: captured anew a few times, then such calls run as they are."""
        if is_capturing():
            return self._plain(tensors, numbers)
        if self._captured is None or not self._captured.is_held:  # it was let go to make room
            self._captured = None
            return self._record(tensors, numbers)
        counters.add("not launched", "a tensor lies where the graph cannot read it")
        self._unplaced_calls += 1
        if self._unplaced_calls <= settings.max_rerecordings:
            self.free()
            return self._record(tensors, numbers)
        return self._plain(tensors, numbers)

    def _give_up(self, error: Exception) -> None:
        why = (str(error) or type(error).__name__).splitlines()[0]
        if self._captured is not None:
            self._captured.free()
            self._captured = None
        self._stage = self._plain
        self._listener(self._plain)
        self._facts = replace(self._facts, stage="not recorded", why=why)
        counters.add("not recorded", type(error).__name__)
        if not isinstance(error, InternalError):  # which is told as what it is
            warn_once(f"treeplay runs {self._work.name} unrecorded: {why}")

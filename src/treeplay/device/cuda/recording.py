"""One piece of work on its way to a graph.

    Warming ── runs as it is: kernels compile, libraries set up ──▶ Waiting ── captured ──▶ Ready: launched
                                                                     │  ▲                     │ let go, or tensors do not fit
                                                                     │  └─────────────────────┘
                                                                     └── cannot be captured ──▶ GivenUp: runs as it is

Work that has run already begins as Waiting. Libraries make handles for each thread, which captures forbid, and another thread
that waits for the whole device breaks a capture: one that fails without an explanation is tried again by later calls. Each
call's effects happen once whichever way it goes: a capture executes nothing, and what follows it does.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch.cuda import is_current_stream_capturing as is_capturing

from treeplay.device.cuda.captured import CapturedGraph
from treeplay.device.cuda.capturing.work import capture_work
from treeplay.device.cuda.lane import Lane
from treeplay.device.cuda.launching.launch import weakly
from treeplay.device.cuda.poisoned import differences
from treeplay.device.cuda.states import GivenUp, Ready, Waiting, Warming
from treeplay.device.protocol import ReplayListener, Work
from treeplay.device.turns import turns
from treeplay.device.use import Use
from treeplay.errors import Explained, InternalError, ProgramRaised, TooEarly, UsageError
from treeplay.observe import counters, warn_once
from treeplay.observe.events import log_event
from treeplay.observe.internal import tell_internal
from treeplay.sandbox.boundary import Unmarked, internal
from treeplay.sandbox.collection import no_collection
from treeplay.settings import settings
from treeplay.values.launch import LaunchFacts

Tensors = list[torch.Tensor]
UNPLACED = "a tensor lies where the graph cannot read it"
_CAPTURING = "inside of a capture"
_MOST_THREADS = 4  # in which a capture may fail before it is the work's fault
_MOST_EARLY_CAPTURES = 16  # that another call may be able to make, before it is the work's fault
_MOST_FAILED_CAPTURES = 3  # of work that has run in the thread
_EVICTED = "its graph was let go to make room; the next call captures it again, if it is worth more than others by then"
_OVER_BUDGET = "over the memory budget"
_MOST_UNASKED = 64  # calls of one that was let go, until it is asked again whether there is room


class CudaRecording:
    """Callable like the work it records. Its owner takes turns; recordings of one device order themselves by the lane."""

    def __init__(self, work: Work, lane: Lane) -> None:
        self._work = work
        self._lane = lane
        self._state: Warming | Waiting | Ready | GivenUp = Waiting() if work.has_run else Warming()
        self._listener: ReplayListener = lambda replay, is_boxed: None
        self._unplaced_calls = 0
        self._failed_captures = self._early_captures = 0
        self._is_tried = False
        self._ran_in = {threading.get_ident()} if work.has_run else set()
        self._past = LaunchFacts(str(lane.device), "warming")  # counts of captured graphs that are gone
        self.plain_calls: Counter[str] = Counter()
        self._use = Use()
        self._is_let_go = False  # to make room, and not captured again
        self._unasked, self._asked_at = 0, 1  # calls since then, and how many of them make it ask

    def __call__(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        match self._state:
            case Warming():
                out = self._warm_up(tensors, numbers)
                self._ran_in.add(threading.get_ident())
                self._state = Waiting()
                return out
            case Waiting():
                return self._record(tensors, numbers)
            case Ready(graph):
                return graph.replay(tensors, numbers)
            case GivenUp():
                return self._as_it_is("given up", tensors, numbers)

    def subscribe(self, listener: ReplayListener) -> None:
        """Have `listener` told whenever there is another way to replay: the recording itself, or its launch function."""
        self._listener = listener

    def facts(self) -> LaunchFacts:
        """How it is launched by now."""
        counted = self._counted()
        match self._state:
            case Ready(graph) if graph.is_held:
                now = graph.facts()
            case Ready(graph):
                now = replace(graph.facts(), stage="warming", why=_EVICTED, scratch_bytes=0, exec_bytes=0)
            case GivenUp(why):
                now = replace(counted, stage="not recorded", why=why)
            case _:
                now = replace(counted, why=_EVICTED) if self._is_let_go else counted
        return replace(
            now,
            launches=counted.launches,
            captures=counted.captures,
            evictions=counted.evictions,
            patched=counted.patched,
            copied_bytes=counted.copied_bytes,
        )

    def free(self) -> None:
        """Give the graph and its memory back; a later call starts anew."""
        self._leave(Waiting())
        self._listener(self, False)

    def forget_results(self) -> None:
        """Let go of the results that the next replay would write again: something else is to make them meanwhile."""
        if isinstance(self._state, Ready):
            self._state.graph.forget_results()

    def _leave(self, state: Waiting | GivenUp) -> None:
        """Go on without a graph; what it has launched still counts."""
        self._past, left, self._state = self._counted(), self._state, state
        if isinstance(left, Ready):
            left.graph.free()

    def _counted(self) -> LaunchFacts:
        """The counts of all graphs so far."""
        past = self._past
        if not isinstance(self._state, Ready):
            return past
        graph, now = self._state.graph, self._state.graph.facts()
        return replace(
            past,
            launches=past.launches + now.launches,
            evictions=past.evictions + (not graph.is_held),
            patched=past.patched + now.patched,
            copied_bytes=past.copied_bytes + now.copied_bytes,
        )

    def _as_it_is(self, why: str, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """The work as it is: a call that launches nothing, and is counted as such."""
        out = self._plain(tensors, numbers)
        self.plain_calls[why] += 1
        return out

    def _warm_up(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """The work as it is, before it is captured. It may take the place of a recording, whose scratch it borrows."""
        if self._work.is_opaque or is_capturing():  # a program's own code may keep anything that it makes
            return self._as_it_is("warm-up", tensors, numbers)
        return self._lane.run_on_scratch(partial(self._as_it_is, "warm-up", tensors, numbers))

    def _plain(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """The work as it is. Its numbers lie in one place for all streams, so it keeps the order of replays."""
        self._clear_gradients(tensors)
        if self._work.vector is None or is_capturing():
            return self._work.run(tensors, numbers)
        with self._lane.lock:
            self._lane.order_current()
            return self._work.run(tensors, numbers)

    def _clear_gradients(self, tensors: Tensors) -> None:
        """Let go of the gradients that the work replaces, as where a program clears them before its forward: its own code may
        ask for them, but nothing that was traced does."""
        for leaf in () if self._work.is_opaque else self._work.slots.values():
            tensors[leaf].grad = None

    def _record(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        if is_capturing():  # somebody else's capture takes the work as it is
            return self._as_it_is(_CAPTURING, tensors, numbers)
        if self._is_let_go and not self._may_come_back():
            return self._as_it_is(_OVER_BUDGET, tensors, numbers)
        # A call that ran as it is has its gradients between activations that are gone, whose segments they would hold for good.
        # Captures begin with giving the cache back, and the first launch makes gradients that lie close together.
        self._clear_gradients(tensors)
        try:
            with Unmarked():
                graph = self._capture(tensors, numbers)
        except UsageError:  # a capture is under way in this thread: the next call may find none
            return self._as_it_is(_CAPTURING, tensors, numbers)
        except ProgramRaised:  # whoever asked has the program itself to run
            raise
        except Exception as error:  # nothing has run
            if self._may_succeed_later(error):
                return self._as_it_is("warm-up", tensors, numbers)
            if not isinstance(error, (Explained, torch.OutOfMemoryError)):
                return self._broken(error, tensors, numbers)
            self._give_up(error)
            return self(tensors, numbers)
        self._state, self._is_let_go = Ready(graph), False
        log_event("recordings", f"{self._work.name}: captured on {self._lane.device}")
        self._listener(graph.launch, self._work.boxing is not None)
        return graph.replay(tensors, numbers)

    def _may_come_back(self) -> bool:
        """Whether there is room for it again, which is not asked in each call."""
        self._unasked += 1
        if self._unasked < self._asked_at:
            return False
        calls, self._unasked, self._asked_at = self._unasked, 0, min(2 * self._asked_at, _MOST_UNASKED)
        return self._lane.admits(self._use, calls)

    def _may_succeed_later(self, error: Exception) -> bool:
        """Whether a capture may have raised for no fault of the work: it has not run in this thread, which it is going to now,
        or another thread has broken the capture, as whoever waits for the whole device does."""
        if isinstance(error, TooEarly):  # another thread has drawn numbers on the host, say
            self._early_captures += 1
            return self._early_captures < _MOST_EARLY_CAPTURES
        if isinstance(error, (InternalError, torch.OutOfMemoryError)) or not isinstance(error, RuntimeError):
            return False
        self._failed_captures += "CUDA error" in str(error)
        thread = threading.get_ident()
        is_new = thread not in self._ran_in and len(self._ran_in) < _MOST_THREADS
        self._ran_in.add(thread)
        return is_new or 0 < self._failed_captures < _MOST_FAILED_CAPTURES

    def _broken(self, error: Exception, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """No graph came of a capture or a launch, and nothing has run: the work as it is. If that raises too, the exception is
        the program's own; else the error was ours, and the work runs as it is from now on."""
        out = self._as_it_is("after an error of treeplay's", tensors, numbers)
        told = internal(error, "recording on a GPU")
        tell_internal(told, self._work.name)
        self._give_up(told)
        return out

    def _not_launched(self, error: Exception, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """A launch raised before the graph was launched."""
        # The work as it is may need less, or raises the same.
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            counters.add("not launched", "out of memory")
            return self._as_it_is("out of memory", tensors, numbers)
        if isinstance(error, Explained):
            self._give_up(error)
            return self(tensors, numbers)
        return self._broken(error, tensors, numbers)

    def _capture(self, tensors: Tensors, numbers: Sequence[float]) -> CapturedGraph:
        # `making`: meanwhile no tier begins to compile, beside which captures take many times as long.
        with no_collection(), turns.making():
            # Weakly: this recording keeps the launch function, which is given these.
            unplaced, not_launched = weakly(self._unplaced), weakly(self._not_launched)
            try:
                captured = capture_work(self._work, tensors, self._lane, unplaced, not_launched, self._use)
            except torch.OutOfMemoryError:
                if not self._lane.make_room():
                    raise
                captured = capture_work(self._work, tensors, self._lane, unplaced, not_launched, self._use)
        if settings.verify:
            self._is_tried = True
            try:
                wrong = differences(self._work, captured.replay, tensors, numbers)
            except BaseException:
                captured.free()
                raise
            finally:
                self._is_tried = False
            if wrong:
                captured.free()
                raise InternalError(f"a launch with its tensors elsewhere gives another {', '.join(wrong)}")
            captured.count_anew()
        self._past = replace(self._past, captures=self._past.captures + 1)
        return captured

    def _unplaced(self, tensors: Tensors, numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        """A tensor lies where the graph cannot read it: captured anew a few times, then such calls run as they are."""
        if is_capturing():
            return self._as_it_is(_CAPTURING, tensors, numbers)
        # With tensors elsewhere, before it is trusted: the graph says itself that it cannot read them.
        if self._is_tried:
            return self._plain(tensors, numbers)
        if isinstance(self._state, Ready) and not self._state.graph.is_held:  # it was let go to make room
            self._leave(Waiting())
            self._is_let_go, self._unasked, self._asked_at = True, 0, 1
            self._listener(self, False)
        if not isinstance(self._state, Ready):  # the launch function of a graph that is gone was called
            return self(tensors, numbers)
        counters.add("not launched", UNPLACED)
        self._unplaced_calls += 1
        if self._unplaced_calls <= settings.max_rerecordings:
            self.free()
            return self._record(tensors, numbers)
        warn_once(
            f"treeplay runs some calls of {self._work.name} unrecorded: {UNPLACED}, and it was captured anew "
            f"{settings.max_rerecordings} times for that. Pass tensors that are aligned as the recorded ones, keep state in "
            "place, or raise treeplay.settings.max_rerecordings"
        )
        return self._as_it_is(UNPLACED, tensors, numbers)

    def _give_up(self, error: Exception) -> None:
        why = (str(error) or type(error).__name__).splitlines()[0]
        self._leave(GivenUp(why))
        counters.add("not recorded", type(error).__name__)
        log_event("refusals", f"{self._work.name}: runs without a CUDA graph: {why}")
        if not isinstance(error, InternalError):  # which is told as what it is
            warn_once(f"treeplay runs {self._work.name} unrecorded: {why}")
        self._listener(self, False)

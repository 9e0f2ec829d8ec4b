"""Tiers: a recording of operators serves at once; what is compiled of it in the background takes its place if it is faster.

recording of operators ── serves calls ──────────────────────▶ trial: calls in turn, timed ──▶ the faster one serves
      └ promote ─▶ thread: compile, record on the device ─┘     (each call runs once, by one of the two)

One graph is compiled at a time. What its thread changes of the tree it changes under the program's lock, between two calls.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter, sleep
from typing import Any

import torch

from treeplay.device.protocol import Recorded, Replay
from treeplay.device.turns import turns
from treeplay.errors import InternalError, LoweringError
from treeplay.locks import after_fork
from treeplay.lower.lowered import Lowered
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.observe.internal import tell_internal
from treeplay.observe.progress import own_threads
from treeplay.sandbox.boundary import Boundary, internal
from treeplay.sandbox.forks import forks_wait_for_imports
from treeplay.torch_seam.dynamo import compile_lock
from treeplay.tree.recorders import recorders
from treeplay.tree.table import NextTier, NextWrapper, Recording
from treeplay.tree.worth.pace import Pace, Timing

_WARM_UPS = 3  # launches of something new that are not timed; on a GPU the first two are no replays yet
_TIMED = 8  # launches of each of the two
_TURN = 0.0005  # seconds for which a thread may keep Python's lock while something is compiled
_FOR_A_CAPTURE = 2.0  # seconds in which a loop of calls comes to capture what it has recorded
_BETWEEN_LOOKS = 0.005  # seconds
_PATIENCE = 1.0  # seconds that the end of the process waits for a compilation to notice it


def promote(recording: Recording, name: str, lock: Any, spent: Callable[[float], None]) -> None:
    """Have the next tier of a recording compiled, which then takes its place if it is faster. `spent` is told, under the
    program's lock, how many seconds that took."""
    tier, recording.next_tier = recording.next_tier, None
    if tier is not None:
        recording.tier, recording.is_settling = "Inductor compiles it in the background", True
        compile_thread.add(partial(_compile, weakref.ref(recording), tier, name, lock, spent))


def _compile(
    of: weakref.ref[Recording], tier: NextTier | NextWrapper, name: str, lock: Any, spent: Callable[[float], None]
) -> None:
    recording = of()
    if recording is None or recording.is_dropped:
        return
    del recording  # a program that is dropped meanwhile goes at once
    _after_capture(of)
    start = perf_counter()
    failed, begin, free = "", None, _nothing
    try:
        with recorders, Boundary("compiling in the background", reasons=(LoweringError,)):
            if isinstance(tier, NextWrapper):
                tier.compile()
                begin = tier.adopt
            else:
                lowered, made = tier.compile()
                begin, free = partial(_try, tier, lowered, made), made.free
    except LoweringError as error:
        failed = f"inductor: {error}"
        counters.add("lowering failed", "inductor")
    except InternalError as error:
        failed = str(error).splitlines()[0]
        tell_internal(error, name)
    seconds = perf_counter() - start
    with lock:
        spent(seconds)
        recording = of()
        if recording is None or recording.is_dropped:
            free()
            return
        recording.seconds["lower in the background"] = seconds
        if begin is None:
            recording.tier, recording.is_settling = "its operators run one by one: it could not be compiled", False
            recording.details = {**recording.details, "passed over": (failed,)}
            return
        recording.is_settling = isinstance(tier, NextTier)  # which is tried first
        log_event("recordings", f"{name}: compiled in the background in {seconds:.2f} s")
        begin(recording)


def _after_capture(of: weakref.ref[Recording]) -> None:
    """Wait until a first tier that is about to be captured is. Each of its thousands of operators gives Python's lock away, and
    would wait for a compiler to have it again: a capture of a second would take half a minute."""
    began = perf_counter()
    while turns.is_making or (_is_warming(of()) and perf_counter() - began < _FOR_A_CAPTURE):
        sleep(_BETWEEN_LOOKS)


def _is_warming(recording: Recording | None) -> bool:
    return recording is not None and not recording.is_dropped and recording.launch().stage == "warming"


def _try(tier: NextTier, lowered: Lowered, made: Recorded, recording: Recording) -> None:
    Trial(recording, tier, lowered, made).begin()


def _nothing() -> None:
    """Frees nothing."""


class Trial:
    """Stands in for two replays that do the same: launches go to them in turn until it is known which one is faster.

    For threads that hold the program's lock."""

    def __init__(self, recording: Recording, tier: NextTier, lowered: Lowered, new: Recorded) -> None:
        self._recording = weakref.ref(recording)
        self._lowered = lowered
        self._made = (tier.now, new)
        self._run: list[Replay] = [tier.now.replay, new.replay]
        self._watch = tier.watch
        self._left = deque([1] * _WARM_UPS + [0, 1] * _TIMED)  # the new one warms up, then both in turn
        self._timings: tuple[list[Timing], list[Timing]] = ([], [])

    def begin(self) -> None:
        """From the next launch on."""
        recording = self._recording()
        if recording is None or recording.set_run is None:
            return
        for which, made in enumerate(self._made):
            made.subscribe(partial(self._replays_by, which))
        recording.tier = "what Inductor compiled is on trial"
        recording.free = self._free
        both = [made.plain_calls for made in self._made]
        recording.plain_calls = lambda: both[0] + both[1]
        recording.set_run(self._launch)

    def _replays_by(self, which: int, replay: Replay, is_boxed: bool) -> None:
        self._run[which] = replay

    def _launch(self, tensors: list[torch.Tensor], numbers: Sequence[float]) -> Sequence[torch.Tensor]:
        if not self._left:
            return self._run[self._decide()](tensors, numbers)
        which = self._left.popleft()
        self._made[not which].forget_results()  # or both would hold all gradients
        if len(self._left) >= 2 * _TIMED:  # a warm-up
            return self._run[which](tensors, numbers)
        timing = Timing(self._watch())
        self._timings[which].append(timing)
        with timing:
            return self._run[which](tensors, numbers)

    def _decide(self) -> bool:
        """Keep the faster one, once all times are known: 0 or 1, whichever is to run. What is not kept is freed."""
        recording = self._recording()
        is_known = all(timing.device() is not None for timings in self._timings for timing in timings)
        if recording is None or recording.set_run is None or not is_known:
            return True
        before, after = map(Pace.of, self._timings)
        is_faster, told = False, "it could not be timed"
        if before is not None and after is not None:
            is_faster = after.seconds < before.seconds
            told = f"{after} where the operators one by one took {before}"
        recording.is_settling = False
        keeps, goes = self._made[is_faster], self._made[not is_faster]
        recording.tier = f"Inductor's was tried: {told}" + ("" if is_faster else "; they stay")
        counters.add("tiers", "inductor" if is_faster else "aten")
        if is_faster:
            recording.lowering, recording.operators = self._lowered.name, self._lowered.operators
            recording.details = {**recording.details, **self._lowered.details}
        recording.launch, recording.free = keeps.facts, keeps.free
        set_run = recording.set_run
        keeps.subscribe(lambda replay, _: set_run(replay))
        goes.subscribe(_nobody)
        set_run(self._run[is_faster])
        goes.free()
        return is_faster

    def _free(self) -> None:
        for made in self._made:
            made.subscribe(_nobody)
            made.free()


def _nobody(replay: Replay, is_boxed: bool) -> None:
    """A listener that does nothing."""


@contextmanager
def _taking_turns_often() -> Iterator[None]:
    """Python's threads take turns every half a millisecond instead of five, as far as nobody asked for less.

    What compiles opens thousands of files, and gives Python's lock away for each. Beside a loop of calls it would wait five
    milliseconds to have it again, so that what takes a second alone would take ten."""
    before = sys.getswitchinterval()
    if before > _TURN:
        sys.setswitchinterval(_TURN)
    try:
        yield
    finally:
        if before > _TURN and abs(sys.getswitchinterval() - _TURN) < 1e-6:  # else somebody else has set it meanwhile
            sys.setswitchinterval(before)


class CompileThread:
    """The thread that compiles, one after the other, what is added to it. It ends with the process."""

    def __init__(self) -> None:
        self._begin()
        after_fork(self._in_child)
        # Before anything that `atexit` runs: that ends Inductor's own processes, for which the thread may wait.
        threading._register_atexit(self._stop)  # type: ignore[attr-defined]

    def _in_child(self) -> None:
        """A forked child has no such thread, which may have held torch's lock."""
        lock: Any = compile_lock()
        if self._is_busy and hasattr(lock, "_at_fork_reinit") and not lock._is_owned():
            lock._at_fork_reinit()
        self._begin()

    def _begin(self) -> None:
        self._todo: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = self._is_busy = False

    @property
    def is_busy(self) -> bool:
        """Whether something is compiled, or about to be."""
        return self._is_busy or bool(self._todo)

    def add(self, work: Callable[[], None]) -> None:
        """Have `work` done in its turn."""
        with self._changed:
            self._todo.append(work)
            if self._thread is None or not self._thread.is_alive():
                forks_wait_for_imports()
                self._thread = threading.Thread(target=self._run, name="treeplay compiles", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all that was added is done; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._todo and not self._is_busy, timeout)

    def _run(self) -> None:
        me = threading.get_ident()
        own_threads.add(me)
        try:
            while not self._is_over:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._todo or self._is_over)
                    if self._is_over:
                        return
                    self._is_busy, work = True, self._todo.popleft()
                try:
                    with _taking_turns_often():
                        work()
                except Exception as error:  # else what was added after it would never be done
                    tell_internal(internal(error, "working in the background"), "a program")
                del work  # or it would be held until the next one comes
        except _TheProcessEnds:
            pass
        finally:
            own_threads.discard(me)
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()

    def _stop(self) -> None:
        """Python's end must not find the thread in the middle of torch: it is interrupted, and waited for a moment."""
        thread, self._is_over = self._thread, True
        if thread is None or not thread.is_alive():
            return
        with self._changed:
            self._changed.notify_all()
        if self._is_busy and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_TheProcessEnds))
        thread.join(_PATIENCE)


class _TheProcessEnds(BaseException):
    pass


compile_thread = CompileThread()

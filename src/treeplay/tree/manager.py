"""The manager of one program: finds the recording for a call, or decides what to do without one.

    warm call             the last recording's call function, nothing else
    call that is left     the program as it is, without a look at the call: nothing would serve it
    cold call             any other (`cold.py`)

Every call's effects happen exactly once, whichever way it ran.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from torch.autograd.profiler import record_function

from treeplay.codegen import hide_from_dynamo
from treeplay.sandbox.boundary import UninterruptedBlock
from treeplay.torch_seam.dynamo import watching, without_dynamo
from treeplay.torch_seam.flags import profiler
from treeplay.torch_seam.modes import default_device, foreign_mode, is_mode_active, is_traced
from treeplay.tree.all_sizes.calls import AllSizes
from treeplay.tree.all_sizes.compile import ForAllSizes
from treeplay.tree.answers import Answers
from treeplay.tree.cache import Cache, no_recording
from treeplay.tree.cold import ColdCalls
from treeplay.tree.gate import Gate
from treeplay.tree.launching import answer_raised
from treeplay.tree.observing import CallObserver, Observe
from treeplay.tree.recording import CallRecorder, MakeRecording
from treeplay.wrap.emit import MISS


class Manager:
    """Owns a program's recordings. A call takes the gate's lock, which is let go while the program's code runs; for
    anything else its owner holds it."""

    def __init__(
        self,
        program: Callable[..., Any],
        record: MakeRecording,
        observe: Observe,
        *,
        name: str,
        on_refusal: str,
        gate: Gate | None = None,
        for_all_sizes: ForAllSizes | None = None,
    ) -> None:
        self.gate = gate or Gate()
        self.program = program
        self.cache = Cache(name, may_free_numbers=not self.gate.is_opaque)
        self.answers = Answers(program, self.cache, self.gate, on_refusal=on_refusal)
        observer = CallObserver(program, observe, self.gate, self.answers)
        recorder = CallRecorder(record, self.gate, self.answers)
        all_sizes = AllSizes(for_all_sizes, observe, self.gate, self.answers)
        self._cold = ColdCalls(program, self.gate, self.answers, observer, recorder, all_sizes).answer
        self._lock = self.gate.lock

    # --- a warm call ----------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_in_range: bool = False) -> Any:
        """One call: replayed if a recording fits, else as decided. `is_in_range`: a profiler has been told of it.

        Python frames of a warm call are a caller's, this one, the call function's and the launch's. `torch.compile` breaks
        its graph here."""
        if watching() is not None:
            return without_dynamo(Manager.call)(self, args, kwargs)
        # One quick question: which mode it is, is asked only where there is one.
        has_modes = is_mode_active()
        if has_modes and (mode := foreign_mode()) is not None:
            return self._under(mode, args, kwargs)
        if profiler._is_profiler_enabled and not is_in_range:
            with record_function(f"treeplay: {self.cache.name}"):
                return self.call(args, kwargs, is_in_range=True)
        if self.cache.pause.left > 0:
            return self._left_alone(args, kwargs)
        with self._lock:
            cache = self.cache
            if has_modes and default_device() != cache.device:  # one recorded without any does not ask for it
                return self._cold(args, kwargs)
            try:
                out = cache.warm(args, kwargs)
            except Exception as error:
                raised = [error]  # see `attempt`, for which there is no time here
            except BaseException:
                self.answers.replay_raised()
                raise
            else:
                if out is not MISS:
                    # `settle` credits it to its recording, later.
                    cache.warm_calls += 1
                    if cache.warm_calls >= cache.due:
                        cache.warm = no_recording  # an audit is a step of the next call, which is a cold one
                    return out
                return self._cold(args, kwargs)
            return self._warm_raised(raised, args, kwargs)

    hide_from_dynamo(call)

    def _left_alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is not looked at: the program as it is, without the lock, which would be most of what this takes.

        It enters and then asks whether the gate is closed; who closes the gate asks after that who is inside. So one of the
        two sees the other. Nothing in between lets another thread take part of a step."""
        me, gate, pause = get_ident(), self.gate, self.cache.pause
        if me in gate.threads or gate.closer is not None or pause.left == 1:
            return self._left_alone_in_turn(args, kwargs)
        try:
            gate.threads[me] = 1
            if gate.closer is None:
                gate.entered += 1
                pause.left -= 1
                return self.program(*args, **kwargs)
        finally:
            gate.threads.pop(me, None)
            if gate.closer is not None:
                gate.tell()
        return self._left_alone_in_turn(args, kwargs)

    hide_from_dynamo(_left_alone)

    def _left_alone_in_turn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same for a program that calls itself, while another thread records, and for the last such call."""
        me, gate, pause = get_ident(), self.gate, self.cache.pause
        with self._lock:
            if pause.left <= 0 or gate.closer is not None:
                return self._cold(args, kwargs)
            pause.left -= 1
            gate.enter(me)
        start = perf_counter()
        try:
            return self.program(*args, **kwargs)
        finally:
            pause.last = perf_counter() - start
            gate.leave(me)

    hide_from_dynamo(_left_alone_in_turn)

    def _under(self, mode: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call under somebody's mode is the plain program, and counts as that. Inside of another program that is observed
        or traced it is part of that one, and no call of its own."""
        if not is_traced():
            with self._lock:
                self.cache.tally.eager[f"under {mode}"] += 1
        return self.program(*args, **kwargs)

    hide_from_dynamo(_under)

    def _warm_raised(self, raised: list[Exception], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recording = self.cache.last
        if recording is None:
            self.answers.replay_raised()
            raise raised.pop()
        with UninterruptedBlock():
            call = self.cache.keys.call(args, kwargs)
            return answer_raised(self.answers, self.cache.entry_of(recording), recording, raised, call)

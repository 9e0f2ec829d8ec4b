"""The manager of one program: finds the recording for a call, or decides what to do without one.

    warm call      the last recording's call function, nothing else
    cold call      key ─▶ entry ─▶ audit, if one is due ─▶ the entry's recordings in turn ─▶ decide ┬▶ observe
                                                                                                   ├▶ record, replay
                                                                                                   └▶ run eagerly, refuse

Every call's effects happen exactly once, whichever way it ran. Prepare, act, commit: an entry changes only after the step
that may fail has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from torch.autograd.profiler import record_function

from treeplay.codegen import hide_from_dynamo
from treeplay.errors import InternalError, Refusal
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.sandbox.boundary import Boundary, UninterruptedBlock, internal
from treeplay.settings import settings
from treeplay.torch_seam.dynamo import watching, without_dynamo
from treeplay.torch_seam.flags import profiler
from treeplay.torch_seam.modes import default_device, foreign_mode, is_mode_active, is_traced
from treeplay.trace.call import Call
from treeplay.trace.recordable import survey_call
from treeplay.tree.all_sizes import AllSizes, ForAllSizes
from treeplay.tree.answers import OBSERVED, OTHERS, OVER_BUDGET, Answers
from treeplay.tree.auditing import audit_last
from treeplay.tree.budget import Pause
from treeplay.tree.cache import Cache, no_recording
from treeplay.tree.decide import Action, CallFacts, KeyPhase, decide
from treeplay.tree.gate import Gate
from treeplay.tree.holdings import holdings
from treeplay.tree.key import values_in_objects
from treeplay.tree.launching import answer_raised
from treeplay.tree.mismatch import cause_of
from treeplay.tree.moved import bring_back
from treeplay.tree.on_probation import next_step, timing_of
from treeplay.tree.probation import ProbationStep
from treeplay.tree.reasons import passing_object, too_often
from treeplay.tree.recorders import recorders
from treeplay.tree.recording import UNLIKE, CallRecorder, MakeRecording
from treeplay.tree.table import Entry, Observation, Recording
from treeplay.values.structure import Leaf
from treeplay.wrap.emit import MISS

Observe = Callable[[Callable[..., Any], Call], tuple[Any, list[Any]]]
_MOST_OBSERVATIONS = 4
_GONE = (KeyPhase.OUTDONE, KeyPhase.EVICTED)


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
        self.observe = observe
        self.cache = Cache(name, may_free_numbers=not self.gate.is_opaque)
        self.answers = Answers(program, self.cache, self.gate, on_refusal=on_refusal)
        self.recorder = CallRecorder(record, self.gate, self.answers)
        self.all_sizes = AllSizes(for_all_sizes, observe, self.gate, self.answers)
        self._lock = self.gate.lock

    # --- a warm call ----------------------------------------------------------------------------------------

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_in_range: bool = False) -> Any:
        """One call: replayed if a recording fits, else as decided. `is_in_range`: a profiler has been told of it.

        Python frames of a warm call are a caller's, this one, the call function's and the launch's. `torch.compile` breaks
        its graph here."""
        if watching() is not None:
            return without_dynamo(Manager.call)(self, args, kwargs)
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
                return self._warm_raised(error, args, kwargs)
            except BaseException:
                self.answers.replay_raised()
                raise
            if out is not MISS:
                cache.warm_calls += 1
                if cache.warm_calls >= cache.due:
                    cache.warm = no_recording  # an audit is a step of the next call, which is a cold one
                return out
            return self._cold(args, kwargs)

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
            out = self.program(*args, **kwargs)
            pause.last = perf_counter() - start
            return out
        finally:
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

    def _warm_raised(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        recording = self.cache.last
        if recording is None:
            self.answers.replay_raised()
            raise error
        with UninterruptedBlock():
            call = self.cache.keys.call(args, kwargs)
            return answer_raised(self.answers, self.cache.entry_of(recording), recording, error, call)

    # --- a cold call ----------------------------------------------------------------------------------------

    def _cold(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with UninterruptedBlock():
            if self.gate.closer is not None:
                self.gate.wait()
            self.cache.began = perf_counter()
            if self.cache.warm_calls < self.cache.due and not is_mode_active():
                out = self._at_a_glance(args, kwargs)
                if out is not MISS:
                    return out
            call = Call(args, kwargs, [], Leaf(0))
            try:
                call = self.cache.keys.call(args, kwargs)
                key, entry = self.cache.keys.find(call)
                while entry.phase is KeyPhase.NEW and self.cache.keys.varies(entry, key, call):
                    call = self.cache.keys.call(args, kwargs)
                    key, entry = self.cache.keys.find(call)
            except Refusal as refusal:
                return self.answers.refused(Entry({"unhashable": ""}), refusal, call)
            except Exception as error:
                return self.answers.broken(Entry({"unknown": ""}), internal(error, "making the key of a call"), call)
            if entry.phase in _GONE and self._may_try_again(entry):
                entry.phase, entry.reason = KeyPhase.NEW, None
            if self.cache.warm_calls >= self.cache.due:
                audit_last(self.answers, self.gate, call)
            out = self.all_sizes.answer(entry, key, call)
            if out is not MISS:
                return out
            if entry.phase is KeyPhase.NEW:
                self.cache.keys.look_around(entry, key, call)
                if self.cache.keys.comes_once(entry, key, call):
                    return self.answers.refused(entry, Refusal(passing_object(self.program, call)), call)
                if not self.cache.table.holds(entry) and not self.cache.keys.admit(entry, key, call):
                    return self.answers.left_alone(entry, call, OVER_BUDGET)
                if entry.phase is KeyPhase.NEW:
                    self.cache.keys.compare(entry, key, call)
            return self._with_entry(entry, call)

    def _may_try_again(self, entry: Entry) -> bool:
        """Whether a key may have another recording, whose recording went."""
        self.cache.settle()
        return self.cache.budget.may_try_again(entry) if entry.phase is KeyPhase.OUTDONE else holdings.admits(entry)

    def _at_a_glance(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the recording that served the last call with such arguments, or of the program if it is left alone
        with them; else MISS. A key costs more than a try."""
        found = self.cache.glances.find(args, kwargs, but=self.cache.last)
        if found is None:
            return MISS
        if isinstance(found, Pause):
            if not found.left:
                return MISS
            found.left -= 1
            return self.answers.eagerly(found.entry, Call(args, kwargs, [], Leaf(0)), found.why)
        entry, recording = found
        if recording.probation is not None and recording.calls >= recording.probation.due:
            return MISS
        try:
            out = recording.call(args, kwargs)
        except Exception as error:
            call = self.cache.keys.call(args, kwargs)
            return answer_raised(self.answers, entry, recording, error, call)
        if out is not MISS:
            self.cache.table.used(entry)
            self._served(entry, recording)
        return out

    def _served(self, entry: Entry, recording: Recording) -> None:
        self.cache.served(recording)
        if recording.next_tier is not None:
            self.recorder.promote(entry, recording)

    def _with_entry(self, entry: Entry, call: Call) -> Any:
        since = recorders.now()
        for recording in reversed(entry.recordings):  # the newest first
            step = next_step(self.cache, entry, recording)
            if step is ProbationStep.GOES:
                return self.answers.as_before(entry, call)
            if step is ProbationStep.AS_IT_IS:
                return self.answers.timed(entry, timing_of(recording, step), call)
            try:
                with timing_of(recording, step):
                    out = recording.call(call.args, call.kwargs)
                if out is MISS and bring_back(recording.moved):
                    out = recording.call(call.args, call.kwargs)
            except Exception as error:
                return answer_raised(self.answers, entry, recording, error, call)
            if out is not MISS:
                self._served(entry, recording)
                self.cache.glances.remember(call, entry, recording)
                return out
        if entry.phase in _GONE:
            return self.answers.as_before(entry, call)
        if entry.recordings and recorders.disturbed(since):
            return self.answers.eagerly(entry, call, OTHERS)
        if entry.phase is KeyPhase.OBSERVED and not self.cache.budget.allows(entry):
            return self.answers.left_alone(entry, call, OVER_BUDGET)
        with self.cache.budget.spending(entry):
            self.cache.let_go(entry, call)
        seen, has_changed = entry.observation(values_in_objects(call)), False
        if seen is None and entry.was_observed and entry.tries and entry.observations:
            entry.tries -= 1
            # What changed since may be nothing to this program: the trace will tell.
            seen, has_changed = entry.observations[-1], True
        return self._without_recording(entry, call, seen, has_changed=has_changed)

    def _without_recording(self, entry: Entry, call: Call, seen: Observation | None, *, has_changed: bool) -> Any:
        match decide(CallFacts(entry.phase, seen is not None, entry.rerecordings, settings.max_rerecordings)):
            case Action.OBSERVE:
                if entry.phase is not KeyPhase.NEW:
                    self._note_cause(entry, call)
                return self._observe(entry, call)
            case Action.RECORD:
                if seen is None:
                    raise InternalError("a call was to be recorded that was not observed")
                if not self.cache.budget.allows(entry):
                    return self.answers.left_alone(entry, call, OVER_BUDGET)
                with self.cache.budget.spending(entry):
                    out = self.recorder.record(entry, call, seen, has_changed=has_changed)
                if out is not UNLIKE:
                    return out
                if has_changed:
                    return self._without_recording(entry, call, None, has_changed=False)
                return self._observe(entry, call)
            case Action.REFUSE:
                return self.answers.refused(entry, Refusal(too_often(self.cache.name, entry)), call)
            case Action.RUN_EAGERLY:
                return self.answers.as_before(entry, call)

    def _observe(self, entry: Entry, call: Call) -> Any:
        self.answers.count(entry, OBSERVED)
        with self.cache.budget.spending(entry), self.gate.inside():
            out, log = self.observe(self.program, call)
            seen = self._seen(entry, call, log)
        if seen is None or entry.phase is KeyPhase.REFUSED:  # by another thread, meanwhile
            return out
        del entry.observations[: -_MOST_OBSERVATIONS + 1]  # a later call may agree with one of them
        entry.observations.append(seen)
        entry.phase = KeyPhase.RECORDED if entry.recordings else KeyPhase.OBSERVED
        entry.was_observed = True
        self.cache.evict()
        return out

    def _seen(self, entry: Entry, call: Call, log: list[Any]) -> Observation | None:
        """What was observed of a call that has had its effects; None where that breaks, and the next call is told."""
        try:
            with Boundary("observing a call"):
                if (failure := getattr(log, "failure", None)) is not None:
                    raise failure
                # What the program itself counts up is as it leaves it: the trace finds such changes and names their line.
                return Observation(log, survey_call(self.program, call).watched_only(), values_in_objects(call))
        except Refusal as refusal:
            self.answers.note_later(entry, refusal.reason)
        except InternalError as error:
            self.answers.note_broken(entry, error)
        return None

    def _note_cause(self, entry: Entry, call: Call) -> None:
        """Why the recordings of this entry do not serve its call."""
        entry.rerecordings += 1
        if entry.is_told:
            entry.is_told = False
            return
        told, what = cause_of(entry.recordings, entry.observations, call)
        entry.causes.append(told)
        log_event("guards", f"{self.cache.name}: no recording fits, since {told}")
        counters.add("rerecordings", what)

"""A cold call: one that the last recording does not serve.

    a glance ─▶ key ─▶ entry ─▶ audit, if one is due ─▶ all sizes ─▶ its recordings in turn ─▶ decide ┬▶ observe
                                                                                                      ├▶ record, replay
                                                                                                      └▶ run eagerly, refuse

Prepare, act, commit: an entry changes only after the step that may fail has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any

from treeplay.errors import InternalError, Refusal
from treeplay.observe import counters
from treeplay.observe.events import log_event
from treeplay.sandbox.attempt import attempt
from treeplay.sandbox.boundary import UninterruptedBlock, internal
from treeplay.settings import settings
from treeplay.torch_seam.modes import is_mode_active
from treeplay.trace.call import Call
from treeplay.trace.survey.found import GONE
from treeplay.trace.survey.recordable import survey_call
from treeplay.tree.all_sizes.calls import AllSizes
from treeplay.tree.answers import OTHERS, OVER_BUDGET, TOO_EARLY, Answers
from treeplay.tree.auditing import audit_last
from treeplay.tree.decide import Action, CallFacts, KeyPhase, decide
from treeplay.tree.gate import Gate
from treeplay.tree.keys.key import Key, values_in_objects
from treeplay.tree.launching import answer_raised
from treeplay.tree.mismatch import cause_of
from treeplay.tree.moved import bring_back
from treeplay.tree.observing import CallObserver
from treeplay.tree.reasons import passing_object, too_often
from treeplay.tree.recorders import recorders
from treeplay.tree.recording import UNLIKE, CallRecorder
from treeplay.tree.table import Entry, Observation, Recording
from treeplay.tree.worth.budget import Pause
from treeplay.tree.worth.holdings import holdings
from treeplay.tree.worth.on_probation import next_step, timing_of
from treeplay.tree.worth.probation import ProbationStep
from treeplay.values.same import is_same
from treeplay.values.structure import Leaf
from treeplay.wrap.emit import MISS

_GONE = (KeyPhase.OUTDONE, KeyPhase.EVICTED)
_PUT_OFF = (*_GONE, KeyPhase.REFUSED)
_MOST_UNRECORDED = 4  # observed calls of which each differs from those before, while nothing has been recorded


class ColdCalls:
    """Answers the cold calls of a program, each with its effects exactly once."""

    def __init__(
        self,
        program: Callable[..., Any],
        gate: Gate,
        answers: Answers,
        observer: CallObserver,
        recorder: CallRecorder,
        all_sizes: AllSizes,
    ) -> None:
        self._program = program
        self._gate = gate
        self._answers = answers
        self._cache = answers.cache
        self._observer = observer
        self._recorder = recorder
        self._all_sizes = all_sizes

    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call, or what it raises. The caller holds the gate's lock."""
        with UninterruptedBlock():
            if self._gate.closer is not None:
                self._gate.wait()
            self._cache.began = perf_counter()
            # A glance sees no modes.
            if self._cache.warm_calls < self._cache.due and not is_mode_active():
                out = self._at_a_glance(args, kwargs)
                if out is not MISS:
                    return out
            found, raised = attempt(self._found, args, kwargs)
            if raised:
                return self._without_key(raised.pop(), Call(args, kwargs, [], Leaf(0)))
            call, key, entry = found
            if entry.phase in _PUT_OFF and self._may_try_again(entry, call):
                if entry.phase is KeyPhase.REFUSED:
                    self._cache.keys.state.free()
                entry.start_over()
            if self._cache.warm_calls >= self._cache.due:
                audit_last(self._answers, self._gate, call)
            out = self._all_sizes.answer(entry, key, call)
            if out is not MISS:
                return out
            if entry.phase is KeyPhase.NEW:
                self._cache.keys.look_around(entry, key, call)
                if self._cache.keys.comes_once(entry, key, call):
                    return self._answers.refused(entry, Refusal(passing_object(self._program, call)), call)
                if not self._cache.table.holds(entry) and not self._cache.keys.admit(entry, key, call):
                    return self._answers.left_alone(entry, call, OVER_BUDGET)
                # `look_around` may have changed that.
                if entry.phase is KeyPhase.NEW:
                    self._cache.keys.compare(entry, key, call)
            return self._with_entry(entry, call)

    def _found(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, Key, Entry]:
        """A call taken apart, and the entry of its key."""
        while True:
            call = self._cache.keys.call(args, kwargs)
            key, entry = self._cache.keys.find(call)
            if entry.phase is not KeyPhase.NEW or not self._cache.keys.varies(entry, key, call):
                return call, key, entry

    def _without_key(self, error: Exception, call: Call) -> Any:
        """For a call, not taken apart, of which no key could be made."""
        if isinstance(error, Refusal):
            return self._answers.refused(Entry({"unhashable": ""}), error, call)
        return self._answers.broken(Entry({"unknown": ""}), internal(error, "making the key of a call"), call)

    def _may_try_again(self, entry: Entry, call: Call) -> bool:
        """Whether a key may have another recording, whose recording went or whose refusal may have passed."""
        if entry.phase is KeyPhase.REFUSED:
            # Whoever wants refusals raised has not had the effects of the calls since: nothing passes by itself.
            may_pass = entry.reason is not None and entry.reason.may_pass and self._answers.on_refusal == "eager"
            return self._cache.budget.may_try_again(entry) and (may_pass or self._has_other_values(entry, call))
        self._cache.settle()
        return self._cache.budget.may_try_again(entry) if entry.phase is KeyPhase.OUTDONE else holdings.admits(entry)

    def _has_other_values(self, entry: Entry, call: Call) -> bool:
        """Whether a plain value that the program reads is no longer what it was when the key was refused."""
        if not entry.refused_with:
            return False
        began, has_changed = perf_counter(), False
        with suppress(Refusal):  # the program still is
            # Of more places: a trace has told since what runs.
            today = survey_call(self._program, call).plain_values()
            has_changed = not all(is_same(today.get(trail, GONE), value) for trail, value in entry.refused_with.items())
        if not has_changed:
            self._cache.budget.still_refused(entry, perf_counter() - began)
        return has_changed

    def _at_a_glance(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the recording that served the last call with such arguments, or of the program if it is left alone
        with them; else MISS. A key costs more than a try."""
        found = self._cache.glances.find(args, kwargs, but=self._cache.last)
        if found is None:
            return MISS
        if isinstance(found, Pause):
            if not found.left:
                return MISS
            found.left -= 1
            return self._answers.eagerly(found.entry, Call(args, kwargs, [], Leaf(0)), found.why)
        entry, recording = found
        # The call may be a step of its probation.
        if recording.probation is not None and recording.calls >= recording.probation.due:
            return MISS
        out, raised = attempt(recording.call, args, kwargs)
        if raised:
            return answer_raised(self._answers, entry, recording, raised, self._cache.keys.call(args, kwargs))
        if out is not MISS:
            self._cache.table.used(entry)
            self._served(entry, recording)
        return out

    def _served(self, entry: Entry, recording: Recording) -> None:
        self._cache.served(recording)
        if recording.next_tier is not None:
            self._recorder.promote(entry, recording)

    def _with_entry(self, entry: Entry, call: Call) -> Any:
        since = recorders.now()
        for recording in reversed(entry.recordings):  # the newest first
            step = next_step(self._cache, entry, recording)
            if step is ProbationStep.GOES:
                return self._answers.as_before(entry, call)
            if step is ProbationStep.AS_IT_IS:
                return self._answers.timed(entry, timing_of(recording, step), call)
            out, raised = attempt(_launched, recording, step, call)
            if raised:
                return answer_raised(self._answers, entry, recording, raised, call)
            if out is not MISS:
                self._served(entry, recording)
                self._cache.glances.remember(call, entry, recording)
                return out
        if entry.phase in _GONE:
            return self._answers.as_before(entry, call)
        if entry.recordings and recorders.disturbed(since):
            return self._answers.eagerly(entry, call, OTHERS)
        if entry.phase is KeyPhase.OBSERVED and not self._cache.budget.allows(entry):
            return self._answers.left_alone(entry, call, OVER_BUDGET)
        if entry.waits and not self._cache.budget.may_try_again(entry):
            return self._answers.left_alone(entry, call, TOO_EARLY)
        # Asks the garbage collector who refers to what, where something has weak references: that takes tens of milliseconds.
        with self._cache.budget.spending(entry):
            self._cache.let_go(entry, call)
        seen, has_changed = entry.observation(values_in_objects(call), call.state), False
        if seen is None and entry.was_observed and entry.tries and entry.observations:
            entry.tries -= 1
            # What changed since may be nothing to this program: the trace will tell.
            seen, has_changed = entry.observations[-1], True
        elif seen is None and self._has_changed_numbers(entry, call):
            call, seen = self._with_numbers(entry, call)
        return self._without_recording(entry, call, seen, has_changed=has_changed)

    def _without_recording(self, entry: Entry, call: Call, seen: Observation | None, *, has_changed: bool) -> Any:
        most = settings.max_rerecordings
        if not entry.was_recorded:
            most = min(most, _MOST_UNRECORDED)
        match decide(CallFacts(entry.phase, seen is not None, entry.rerecordings, most)):
            case Action.OBSERVE:
                if entry.phase is not KeyPhase.NEW:
                    self._note_cause(entry, call)
                return self._observer.observe(entry, call)
            case Action.RECORD:
                if seen is None:
                    raise InternalError("a call was to be recorded that was not observed")
                if not self._cache.budget.allows(entry):
                    return self._answers.left_alone(entry, call, OVER_BUDGET)
                with self._cache.budget.spending(entry):
                    out = self._recorder.record(entry, call, seen, has_changed=has_changed)
                if out is not UNLIKE:
                    return out
                if has_changed and self._has_changed_numbers(entry, call):  # and they are something to it
                    call, seen = self._with_numbers(entry, call)
                    return self._without_recording(entry, call, seen, has_changed=False)
                if has_changed:
                    return self._without_recording(entry, call, None, has_changed=False)
                return self._observer.observe(entry, call)
            case Action.REFUSE:
                return self._answers.refused(entry, Refusal(too_often(self._cache.name, entry)), call)
            case Action.RUN_EAGERLY:
                return self._answers.as_before(entry, call)

    def _with_numbers(self, entry: Entry, call: Call) -> tuple[Call, Observation | None]:
        """The call with the numbers that are inputs by now, and what was seen of one that differs by these alone."""
        call = self._cache.keys.state.marked(call)
        return call, entry.observation(values_in_objects(call), call.state)

    def _has_changed_numbers(self, entry: Entry, call: Call) -> bool:
        """Whether the call differs by numbers of the state alone from one that was observed, or that was recorded."""
        state = self._cache.keys.state
        if entry.observations:
            found = entry.observations[-1].found
            return state.found(found.plain_values(), found.plain_values(today=True))
        if not entry.recorded_with:
            return False
        with suppress(Refusal):  # which the observation of this call tells
            return state.found(entry.recorded_with, survey_call(self._program, call).plain_values())
        return False

    def _note_cause(self, entry: Entry, call: Call) -> None:
        """Note why the recordings of this entry do not serve its call."""
        entry.rerecordings += 1
        if entry.is_told:
            entry.is_told = False
            return
        told, what = cause_of(entry.recordings, entry.observations, call)
        entry.causes.append(told)
        log_event("guards", f"{self._cache.name}: no recording fits, since {told}")
        counters.add("rerecordings", what)


def _launched(recording: Recording, step: ProbationStep | None, call: Call) -> Any:
    with timing_of(recording, step):
        out = recording.call(call.args, call.kwargs)
    if out is MISS and bring_back(recording.moved):
        out = recording.call(call.args, call.kwargs)
    return out

"""The manager of one program: finds the recording for a call, or decides what to do without one.

    warm call: the last recording's call function, nothing else
    otherwise: key ─▶ entry ─▶ its recordings in turn ─▶ decide ─▶ observe | record | run eagerly

Every call's effects happen exactly once, whichever way it ran. Prepare, act, commit: an entry changes only after the step
that may fail has succeeded. What our stages raise ends here: a refusal is a reason, anything else an error of our own, and the
call runs as it is. A key with two such errors is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from weakref import proxy

import torch

from treeplay.codegen import hide_from_dynamo
from treeplay.errors import (
    Differing,
    InternalError,
    ProgramRaised,
    RanOtherwise,
    Refusal,
    StaleRecordingWarning,
    TakenBack,
    TooEarly,
    UsageError,
)
from treeplay.observe import counters, warn_once
from treeplay.observe.internal import tell_internal
from treeplay.observe.once import warn_here
from treeplay.sandbox.boundary import Boundary, UninterruptedBlock, internal
from treeplay.settings import settings
from treeplay.torch_seam.dynamo import is_dynamo_watching, without_dynamo
from treeplay.torch_seam.modes import default_device, foreign_mode, is_mode_active, is_traced
from treeplay.trace.call import Call
from treeplay.trace.raised import program_raised
from treeplay.trace.recordable import survey_call
from treeplay.trace.turn import Busy
from treeplay.tree.audit import Audit
from treeplay.tree.decide import Action, CallFacts, KeyPhase, decide
from treeplay.tree.gate import Gate
from treeplay.tree.key import Key, describe, has_fakes, kind_of, make_key, varying
from treeplay.tree.launching import Reached, finish, reached
from treeplay.tree.mismatch import first_mismatch, key_mismatches, memory_mismatch, nearest_mismatches
from treeplay.tree.moved import bring_back
from treeplay.tree.reasons import OF_FAKES, broken_twice, does_not_fit, passing_object, too_often, under_mode
from treeplay.tree.recorders import recorders
from treeplay.tree.table import MOST_TRIES, Entry, EntryTable, Observation, Recording
from treeplay.values.refusal import Reason
from treeplay.values.structure import Leaf, flatten
from treeplay.wrap.emit import MISS

Observe = Callable[[Callable[..., Any], Call], tuple[Any, list[Any]]]
MakeRecording = Callable[[Call, list[Any]], Recording]
E = TypeVar("E", bound=Exception)
CallFunction = Callable[[tuple[Any, ...], dict[str, Any]], Any]
_NEVER = 2**62
_MOST_OBSERVATIONS = 4
_MOST_ERRORS = 2  # of our own, before a key is left alone
# What calls were that launched no recording, besides what a device has to say.
_OBSERVED = "observed"
_REFUSED = "refused"
_BROKEN = "after an error of treeplay's"
_OTHERS = "another thread records"
_REPLAYING = "a replay raised"
_MOST_WAITS = 16  # calls that are too early to record, before a program is refused


def _never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return MISS


@dataclass(slots=True)
class Tally:
    """What happened since the program was jitted; `reset` and dropped recordings take nothing away from it.

    Every call ran the program `eager`ly, `went` to a recording, or `raised`: a refusal, or what a recording raised.
    """

    eager: Counter[str] = field(default_factory=Counter)
    went: int = 0
    raised: Counter[str] = field(default_factory=Counter)
    refusals: int = 0
    dropped: int = 0
    recordings: int = 0


class Manager:
    """Owns a program's table of recordings. A call takes the gate's lock, which is let go while the program's code runs; for
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
    ) -> None:
        self.gate = gate or Gate()
        self.program = program
        self.record = record
        self.observe = observe
        self.name = name
        self.on_refusal = on_refusal
        self.table = EntryTable()
        self.passing_object: set[Hashable] = set()  # keys by class, of calls with objects that do not come again
        self.tally = Tally()
        self.warm: CallFunction = _never
        self._last: Recording | None = None
        self._device: torch.device | None = None  # the default device under which the last recording was called
        self.warm_calls = 0
        self._due = _NEVER  # warm calls until the next look at whether the last recording is to be audited

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call: replayed if a recording fits, else as decided.

        Python frames of a warm call are a caller's, this one, the call function's and the launch's. `torch.compile` breaks
        its graph here."""
        if is_dynamo_watching():
            return without_dynamo(Manager.call)(self, args, kwargs)
        has_modes = is_mode_active()
        if has_modes and (mode := foreign_mode()) is not None:
            return self._under(mode, args, kwargs)
        with self.gate.lock:
            if (
                has_modes and default_device() != self._device
            ):  # a recording that was made without one does not ask for it
                return self._miss(args, kwargs)
            try:
                out = self.warm(args, kwargs)
            except Exception as error:
                return self._warm_raised(error, args, kwargs)
            except BaseException:
                self.tally.raised[_REPLAYING] += 1
                raise
            if out is not MISS:
                self.warm_calls += 1
                if self.warm_calls >= self._due:
                    self.warm = partial(Manager._audited, proxy(self))  # not a method, by which it would keep itself
                return out
            return self._miss(args, kwargs)

    hide_from_dynamo(call)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with UninterruptedBlock():
            return self._find(args, kwargs)

    def _warm_raised(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with UninterruptedBlock():
            return self._launch_raised(self._last, error, Call(args, kwargs, *flatten((args, kwargs))))

    def _under(self, mode: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call under somebody's mode is the plain program, and counts as that. Inside of another program that is observed
        or traced it is part of that one, and no call of its own."""
        if not is_traced():
            with self.gate.lock:
                self.tally.eager[f"under {mode}"] += 1
        return self.program(*args, **kwargs)

    hide_from_dynamo(_under)

    def reset(self) -> None:
        """Forget every recording and every refusal."""
        self.passing_object.clear()
        self.table.clear()
        self._use(None)

    def settle(self) -> None:
        """Credit warm calls to the recording that served them."""
        if self._last is not None:
            self._last.calls += self.warm_calls
        self.tally.went += self.warm_calls
        self.warm_calls = 0

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.gate.closer is not None:
            self.gate.wait()
        call = Call(args, kwargs, [], Leaf(0))
        try:
            leaves, structure = flatten((args, kwargs))
            call = Call(args, kwargs, leaves, structure)
            key = make_key(call)
            if self.passing_object and (kind := kind_of(key)) is not None and kind in self.passing_object:
                key = kind
            entry = self.table.entry(key, lambda: describe(call))
        except Refusal as refusal:
            return self._refused(Entry({"unhashable": ""}), refusal, call)
        except Exception as error:
            return self._broken(Entry({"unknown": ""}), internal(error, "making the key of a call"), call)
        if entry.phase is KeyPhase.NEW:
            self._look_around(entry, key, call)
            if self._come_once(entry, key):
                return self._refused(entry, Refusal(passing_object(self.program, call)), call)
        since = recorders.now()
        out = self._replay_any(entry, call)
        if out is not MISS:
            return out
        if entry.recordings and recorders.disturbed(since):
            return self._eager(entry, call, _OTHERS)
        if self._last in self.table.let_go(lambda recording: _told(entry, recording, call)):
            self._use(None)
        seen = entry.observation()
        if seen is None and entry.was_observed and entry.tries and entry.observations:
            entry.tries -= 1
            seen = entry.observations[-1]  # what changed since may be nothing to this program: the trace will tell
        return self._act(decide(_facts_of(entry, seen)), entry, call, seen)

    def _replay_any(self, entry: Entry, call: Call) -> Any:
        """Replay the newest recording that fits the call, or return MISS."""
        for recording in reversed(entry.recordings):
            try:
                out = recording.call(call.args, call.kwargs)
                if out is MISS and bring_back(recording.moved):
                    out = recording.call(call.args, call.kwargs)
            except Exception as error:
                return self._launch_raised(recording, error, call)
            if out is not MISS:
                self._replayed(recording)
                return out
        return MISS

    def _look_around(self, entry: Entry, key: Key, call: Call) -> None:
        """Note which mode keeps a new entry's calls eager, or what keeps them apart from the nearest that are recorded."""
        mode = key.ambience.only_eagerly
        if mode is not None:
            entry.phase, entry.reason = KeyPhase.EAGER, under_mode(mode)
            return
        if has_fakes(call):
            entry.phase, entry.reason = KeyPhase.EAGER, OF_FAKES
            return
        others = [(other, at) for other, at in self.table.items() if isinstance(other, Key) and at.recordings]
        differing = [
            key_mismatches(other.ambience, at.recordings[-1].signature, key.ambience, call) for other, at in others
        ]
        entry.differs = min(reversed(differing), key=len, default=())  # of two as near, the one used last

    def _come_once(self, entry: Entry, key: Key) -> bool:
        """Whether an object among the arguments has been another one in each call: as many as are kept, none of them twice.

        Then its calls share the new entry, from now on."""
        kind = kind_of(key) if len(self.table) > settings.max_recordings_per_program else None
        if kind is None:
            return False
        others = [(other, at) for other, at in self.table.items() if at is not entry]
        if any(at.phase is not KeyPhase.OBSERVED or kind_of(other) != kind for other, at in others):  # type: ignore[arg-type]
            return False
        self.table.clear()
        self.table.put(kind, entry)
        self.passing_object.add(kind)
        return True

    def _replayed(self, recording: Recording) -> None:
        recording.calls += 1
        self.tally.went += 1
        self._use(recording)

    def _use(self, recording: Recording | None) -> None:
        self.settle()
        self._device = default_device()
        self._last = recording
        self.warm = recording.call if recording is not None else _never
        self._plan_audit()

    def _plan_audit(self) -> None:
        last = self._last
        is_audited = last is not None and last.audit is not None and settings.audit
        self._due = last.audit.due - last.calls if is_audited else _NEVER  # type: ignore[union-attr]

    def _audited(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A warm call before which the recording is traced again, if it fits and there is time."""
        recording = self._last
        if recording is None or recording.audit is None:
            return MISS
        self.settle()
        self.warm = recording.call
        if recording.audit.may_run(recording.calls):
            difference = self._audit(recording, recording.audit, Call(args, kwargs, *flatten((args, kwargs))))
            if difference is not None:
                self._drop_stale(recording, difference)
                return MISS
        self._plan_audit()
        return recording.call(args, kwargs)

    def _audit(self, recording: Recording, audit: Audit, call: Call) -> Reason | None:
        """How the program differs from its recording by now; an audit that breaks was the last one."""
        self._use(None)  # other threads' calls come to the gate
        try:
            with Boundary("auditing a recording", reasons=(Busy,)):
                fits = first_mismatch(recording.signature, call) is None
                with self.gate.alone(), self.gate.let_go():
                    return audit.run(call, recording.calls) if fits else None
        except Busy:
            return None
        except InternalError as error:
            tell_internal(error, f"the audit of {self.name}")
            recording.audit = None
            return None
        finally:
            if any(recording in entry.recordings for entry in self.table):
                self._use(recording)

    def _drop_stale(self, recording: Recording, difference: Reason) -> None:
        """Tell that a recording no longer does what its program would, and forget it."""
        times = f"up to {recording.calls} times" if recording.calls > 1 else "once"
        warn_here(
            f"treeplay replayed an old recording of {self.name}, {times}. {difference}", category=StaleRecordingWarning
        )
        counters.add("stale recordings", difference.op)
        for entry in self.table.drop(recording):
            entry.causes.append(f"an audit found this: {difference}")
            entry.rerecordings += 1
            entry.observations.clear()
            if entry.rerecordings >= settings.max_rerecordings:
                self._note_refusal(entry, difference)
            elif not entry.recordings:
                entry.phase = KeyPhase.NEW
        self._use(None)

    def _act(self, action: Action, entry: Entry, call: Call, seen: Observation | None) -> Any:
        match action:
            case Action.OBSERVE:
                if entry.phase is not KeyPhase.NEW:
                    self._note_cause(entry, call)
                return self._observe(entry, call)
            case Action.RECORD:
                if seen is None:
                    raise InternalError("a call was to be recorded that was not observed")
                return self._record(entry, call, seen)
            case Action.REFUSE:
                return self._refused(entry, Refusal(too_often(self.name, entry)), call)
            case Action.RUN_EAGERLY:
                if entry.phase is not KeyPhase.REFUSED:
                    return self._eager(entry, call, f"under {entry.reason.op}" if entry.reason is not None else "eager")
                if self.on_refusal == "raise" and entry.reason is not None:
                    raise self._raised(Refusal(entry.reason))
                return self._eager(entry, call, _REFUSED)

    def _eager(self, entry: Entry, call: Call, why: str) -> Any:
        entry.eager_calls[why] += 1
        self.tally.eager[why] += 1
        with self.gate.inside():
            return self.program(*call.args, **call.kwargs)

    def _raised(self, error: E) -> E:
        """Note that a call is told what is in its way, instead of being run."""
        self.tally.raised["a refusal was raised" if isinstance(error, Refusal) else "an error was raised"] += 1
        return error

    def _observe(self, entry: Entry, call: Call) -> Any:
        entry.eager_calls[_OBSERVED] += 1
        self.tally.eager[_OBSERVED] += 1
        with self.gate.inside():
            out, log = self.observe(self.program, call)
            seen = self._seen(entry, call, log)
        if seen is None or entry.phase is KeyPhase.REFUSED:  # by another thread, meanwhile
            return out
        del entry.observations[: -_MOST_OBSERVATIONS + 1]  # a later call may agree with one of them
        entry.observations.append(seen)
        entry.phase = KeyPhase.RECORDED if entry.recordings else KeyPhase.OBSERVED
        entry.was_observed = True
        self._evict()
        return out

    def _seen(self, entry: Entry, call: Call, log: list[Any]) -> Observation | None:
        """What was observed of a call that has had its effects; None where that breaks, and the next call is told."""
        try:
            with Boundary("observing a call"):
                if (failure := getattr(log, "failure", None)) is not None:
                    raise failure
                # What the program itself counts up is as it leaves it: the trace finds such changes and names their line.
                return Observation(log, survey_call(self.program, call).watched_only())
        except Refusal as refusal:
            self._note_refusal(entry, refusal.reason)
            if self.on_refusal == "eager":
                self._warn(refusal.reason)
        except InternalError as error:
            self._note_broken(entry, error)
        return None

    def _note_cause(self, entry: Entry, call: Call) -> None:
        entry.rerecordings += 1
        if entry.is_told:
            entry.is_told = False
            return
        found = nearest_mismatches([recording.signature for recording in entry.recordings], call)
        if not found and entry.recordings:
            last = entry.recordings[-1]
            memory = memory_mismatch(last.signature, last.plan.shared, call)
            found = [memory] if memory is not None else []
        place = entry.observations[-1].found.changed() if entry.observations and not found else None
        told = "; ".join(map(str, found))
        entry.causes.append(told or (f"{place}: another value" if place else "arguments share memory differently"))
        counters.add("rerecordings", found[0].what if found else str(place or "memory"))

    def _record(self, entry: Entry, call: Call, seen: Observation) -> Any:
        entry.was_observed = entry.is_told = False
        is_expected = seen.found.changed() is not None
        recording = None
        try:
            with recorders, self.gate.alone():
                since, entered = recorders.now(), self.gate.entered
                recording = self._made(call, seen)
                out = recording.call(call.args, call.kwargs)
                if out is MISS:
                    # A first compile leaves traces in the process that guards tell of; a second one finds them there.
                    recording.drop()
                    recording = self._made(call, seen)
                    out = recording.call(call.args, call.kwargs)
                is_disturbed = out is MISS and (recorders.others(since) or self.gate.entered != entered)
        except (Busy, UsageError):  # another call may find nobody in its way
            return self._eager(entry, call, _OTHERS)
        except TooEarly as early:
            entry.waits += 1
            if entry.waits < _MOST_WAITS:
                return self._eager(entry, call, "too early to record")
            return self._refused(entry, early, call)
        except Differing as differing:
            if is_expected:  # something was seen to have changed since, and does count
                return self._act(decide(_facts_of(entry, None)), entry, call, None)
            if entry.differing:  # the second in a row: not a setting that was changed once
                return self._refused(entry, differing, call)
            entry.differing = True
            entry.forget(seen)
            return self._observe(entry, call)
        except ProgramRaised as raised:
            return self._run_to_tell(entry, raised, call)
        except RanOtherwise as ran:
            return self._ran_otherwise(entry, ran)
        except Refusal as refusal:
            if is_expected and entry.tries:  # it may be about what has changed
                return self._act(decide(_facts_of(entry, None)), entry, call, None)
            return self._refused(entry, refusal, call)
        except Exception as error:
            if recording is not None:
                return self._launch_raised(recording, error, call, entry)
            return self._broken(entry, _as_internal(error, "recording a call"), call)
        if is_disturbed:
            recording.drop()
            return self._eager(entry, call, _OTHERS)
        if out is MISS:
            mismatch = first_mismatch(recording.signature, call)
            recording.drop()
            return self._refused(entry, Refusal(does_not_fit(mismatch)), call)
        if not self.table.holds(entry):  # it was reset meanwhile
            self.tally.went += 1
            self.table.free([recording])
            return out
        entry.recordings.append(recording)
        entry.forget(seen)
        entry.phase, entry.differing, entry.tries = KeyPhase.RECORDED, False, MOST_TRIES
        self.tally.recordings += 1
        self._replayed(recording)
        self._evict()
        return out

    def _made(self, call: Call, seen: Observation) -> Recording:
        """A recording for `call`, of which nothing has run; raises reasons and errors of our own alone.

        Made without the lock; then nobody is inside of the program, or someone stays there. `UsageError`: somebody captures in
        this thread, and captures do not nest.
        """
        self._use(None)  # other threads' calls come to the gate
        with self.gate.let_go(), Boundary("recording a call", reasons=(Busy, UsageError)):
            recording = self.record(call, seen.log)
        self.gate.drain()
        return recording

    def _run_to_tell(self, entry: Entry, raised: ProgramRaised, call: Call) -> Any:
        """An exception that the program raises eagerly too is its own, and no reason to refuse it."""
        if self.on_refusal == "raise" and not (raised.is_own or raised.is_treeplays):
            return self._refused(entry, raised, call)
        if raised.is_treeplays and self.on_refusal == "raise":
            raise self._raised(internal(raised.error, "tracing a call"))
        out = self._eager(entry, call, _BROKEN if raised.is_treeplays else _REFUSED)
        if raised.is_treeplays:
            self._note_broken(entry, internal(raised.error, "tracing a call"))
            return out
        self._note_refusal(entry, raised.reason)
        if self.on_refusal == "eager":
            self._warn(raised.reason)
        return out

    def _ran_otherwise(self, entry: Entry, ran: RanOtherwise) -> Any:
        """The call has had its effects, and its result is there."""
        self._note_refusal(entry, ran.reason)
        self._warn(ran.reason)
        entry.eager_calls[_REFUSED] += 1
        self.tally.eager[_REFUSED] += 1
        return ran.result

    def _launch_raised(
        self, recording: Recording | None, error: Exception, call: Call, entry: Entry | None = None
    ) -> Any:
        """What is left to do for a call whose replay raised: once it has had its effects, nothing has them again."""
        if recording is None:
            self.tally.raised[_REPLAYING] += 1
            raise error
        own = (known for known in self.table if recording in known.recordings)
        entry = entry or next(own, None) or Entry({"unknown": ""})
        if isinstance(error, TakenBack):
            cause = error.__cause__
            if isinstance(cause, Refusal):
                self._drop(entry, recording)
                return self._refused(entry, cause, call)
            return self._ran_instead(entry, recording, cause if isinstance(cause, Exception) else error, call)
        if isinstance(error, RanOtherwise):
            self._drop(entry, recording)
            return self._ran_otherwise(entry, error)
        match reached(recording, error):
            case Reached.USERS_CODE:
                self._replayed(recording)
                raise error
            case Reached.OPERATORS if recording.signature.mutated or recording.draws:
                self.tally.raised[_REPLAYING] += 1
                raise error
            case Reached.RESULTS:
                return self._finished(recording, error, entry)
        if isinstance(error, Refusal):
            self._drop(entry, recording)
            return self._refused(entry, error, call)
        if recording.lowering == "capture":  # the user's code was being recorded
            return self._run_to_tell(entry, program_raised(error, "being recorded"), call)
        out = self._eager(entry, call, _BROKEN)  # what the program raises as it is, too, is its own
        if not isinstance(error, UsageError):  # then somebody captures in this thread
            self._drop(entry, recording)
            self._note_broken(entry, _as_internal(error, "launching a recording"))
        return out

    def _finished(self, recording: Recording, error: Exception, entry: Entry) -> Any:
        """The result of a call that raised after its launch."""
        doing = "putting the results of a replay together"
        try:
            out = finish(recording, error)
        except Exception as again:
            self._drop(entry, recording)
            self.tally.raised[_REPLAYING] += 1
            raise internal(again, doing) from again
        if recording in entry.recordings:
            self._replayed(recording)
        else:  # it was the first launch: another call makes it anew
            self.tally.went += 1
            recording.free()
        self._note_broken(entry, _as_internal(error, doing))
        return out

    def _ran_instead(self, entry: Entry, recording: Recording, error: Exception, call: Call) -> Any:
        """Run the program for a replay that raised and left no mark."""
        out = self._eager(entry, call, _REPLAYING)  # what the program raises, too, is its own
        self._drop(entry, recording)
        self._note_broken(entry, _as_internal(error, "replaying a call"))
        return out

    def _drop(self, entry: Entry, recording: Recording) -> None:
        """Forget a recording, so that a later call makes another one."""
        if recording in entry.recordings:
            entry.recordings.remove(recording)
            if not entry.recordings and entry.phase is KeyPhase.RECORDED:
                entry.phase = KeyPhase.NEW
        if recording is self._last:
            self._use(None)
        self.table.free([recording])

    def _broken(self, entry: Entry, error: InternalError, call: Call) -> Any:
        """Nothing of the call has run: it runs as it is, unless errors are to be raised."""
        if self.on_refusal == "raise":
            entry.errors.append(error.text)
            raise self._raised(error)
        self._note_broken(entry, error)
        return self._eager(entry, call, _BROKEN)

    def _note_broken(self, entry: Entry, error: InternalError) -> None:
        entry.errors.append(error.text)
        tell_internal(error, self.name)
        if len(entry.errors) >= _MOST_ERRORS:
            for recording in list(entry.recordings):
                self._drop(entry, recording)
            entry.phase, entry.reason = KeyPhase.REFUSED, broken_twice(error)
            entry.observations.clear()

    def _refused(self, entry: Entry, refusal: Refusal, call: Call) -> Any:
        self._note_refusal(entry, refusal.reason)
        if self.on_refusal == "raise":
            raise self._raised(refusal)
        self._warn(refusal.reason)
        return self._eager(entry, call, _REFUSED)

    def _note_refusal(self, entry: Entry, reason: Reason) -> None:
        entry.phase, entry.reason = KeyPhase.REFUSED, reason
        entry.observations.clear()
        self.tally.refusals += 1
        counters.add("refusals", reason.op)

    def _warn(self, reason: Reason) -> None:
        warn_once(f"treeplay runs {self.name} eagerly. {reason}")

    def _evict(self) -> None:
        most = settings.max_recordings_per_program
        calls = [entry.arguments for entry in self.table]
        dropped = self.table.evict(most)
        if not dropped:
            return
        self.tally.dropped += len(dropped)
        if any(self._last in entry.recordings for entry in dropped):
            self._use(None)
        warn_once(
            f"treeplay keeps {most} recordings of {self.name} and drops the least recently used: what varies from call to "
            f"call is {varying(calls)}. Keep it constant (pad shapes, pass numbers as tensors), or raise "
            "treeplay.settings.max_recordings_per_program."
        )


def _told(entry: Entry, recording: Recording, call: Call) -> str:
    """What keeps a call of this entry from one of its recordings."""
    if recording not in entry.recordings:
        return ""
    return "; ".join(map(str, nearest_mismatches([recording.signature], call)))


def _facts_of(entry: Entry, seen: Observation | None) -> CallFacts:
    return CallFacts(entry.phase, seen is not None, entry.rerecordings, settings.max_rerecordings)


def _as_internal(error: Exception, doing: str) -> InternalError:
    return error if isinstance(error, InternalError) and error.text else internal(error, doing)

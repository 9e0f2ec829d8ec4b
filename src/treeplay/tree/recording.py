"""A call that is recorded: what is made for it serves it, or it is answered otherwise.

make ─▶ launch ─▶ it fits: kept
 │         └ it does not: made once more ─▶ launch ─▶ fits: kept; else refused, or nobody's fault beside other threads
 └ a reason: what it means for this call, and for the next one of its key
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from treeplay.errors import Differing, ProgramRaised, RanOtherwise, Refusal, TooEarly, UsageError
from treeplay.sandbox.boundary import Boundary, is_users_own
from treeplay.trace.call import Call
from treeplay.trace.turn import Busy
from treeplay.tree.answers import OTHERS, TOO_EARLY, Answers, as_internal
from treeplay.tree.gate import Gate
from treeplay.tree.launching import answer_raised
from treeplay.tree.mismatch import first_mismatch
from treeplay.tree.reasons import does_not_fit
from treeplay.tree.recorders import recorders
from treeplay.tree.table import Entry, Observation, Recording
from treeplay.tree.tiers import promote
from treeplay.tree.worth.holdings import holdings
from treeplay.values.location import Location
from treeplay.values.place import Trail
from treeplay.wrap.emit import MISS

MakeRecording = Callable[[Call, list[Any]], Recording]
_MOST_WAITS = 16  # calls that are too early to record, before a program is refused


class _NumbersStay(Exception):
    """What could not be recorded had numbers as inputs, and may be recorded without: without those that it `needed`, at the
    line `where`, or any."""

    def __init__(self, needed: tuple[Trail, ...], where: Location | None) -> None:
        self.needed = needed
        self.where = where


class _CountsUp(Exception):
    """What could not be recorded counts in its state, and may be recorded with what it counts as an input."""


class Unlike:
    """What recording a call gives if what was seen of an earlier one does not hold for it: nothing has run."""


UNLIKE = Unlike()


class CallRecorder:
    """Records calls of one program by `record`, with the gate closed and without its lock."""

    def __init__(self, record: MakeRecording, gate: Gate, answers: Answers) -> None:
        self._record = record
        self._gate = gate
        self._answers = answers

    def record(self, entry: Entry, call: Call, seen: Observation, *, has_changed: bool) -> Any:
        """The call's result, or `UNLIKE`. `has_changed`: something in the program's reach is known not to be as it was seen."""
        return self._attempt(entry, call, seen, has_changed=has_changed)()

    def _attempt(self, entry: Entry, call: Call, seen: Observation, *, has_changed: bool) -> Callable[[], Any]:
        """What gives the result: called while no error is handled, for a program that runs as it is would find that."""
        answers, began = self._answers, perf_counter()
        entry.was_observed = entry.is_told = False
        recording = None
        try:
            with recorders, self._gate.alone():
                since, entered = recorders.now(), self._gate.entered
                recording = self._made(call, seen, has_changed=has_changed)
                out = recording.call(call.args, call.kwargs)
                if out is MISS:
                    # A first compile leaves traces in the process that guards tell of; a second one finds them there.
                    recording.drop()
                    recording = None  # or what goes wrong from here on would be told as its launch
                    recording = self._made(call, seen, has_changed=has_changed)
                    out = recording.call(call.args, call.kwargs)
                is_disturbed = out is MISS and (recorders.others(since) or self._gate.entered != entered)
        except (Busy, UsageError):  # another call may find nobody in its way
            return partial(answers.eagerly, entry, call, OTHERS)
        except _NumbersStay as stay:
            answers.cache.keys.fix_numbers(entry, call, stay.needed, stay.where)
            return partial(answers.eagerly, entry, call, "a number that varies is no input")
        except _CountsUp:
            return partial(self.record, entry, answers.cache.keys.state.marked(call), seen, has_changed=has_changed)
        except TooEarly as early:
            answers.cache.budget.waits(entry, perf_counter() - began if early.may_last else 0.0)
            if entry.waits >= (_MOST_WAITS if not early.may_last else _MOST_WAITS // 2):
                return partial(answers.refused, entry, early, call)
            told = f"{TOO_EARLY}: {str(early).splitlines()[0]}"
            entry.causes += [told] * (told not in entry.causes)
            return partial(answers.eagerly, entry, call, TOO_EARLY)
        except Differing as differing:
            if has_changed:  # and does count
                return lambda: UNLIKE
            if entry.differing:  # the second in a row: not a setting that was changed once
                return partial(answers.refused, entry, differing, call)
            entry.differing = True
            entry.forget(seen)
            return lambda: UNLIKE
        except ProgramRaised as raised:
            return partial(answers.to_tell, entry, raised, call)
        except RanOtherwise as ran:
            return partial(answers.ran_otherwise, entry, ran)
        except Refusal as refusal:
            if has_changed and entry.tries:  # it may be about what has changed
                return lambda: UNLIKE
            return partial(answers.refused, entry, refusal, call)
        except Exception as error:
            if is_users_own(error):
                raise
            if recording is not None:
                return partial(answer_raised, answers, entry, recording, [error], call)
            return partial(answers.broken, entry, as_internal(error, "recording a call"), call)
        if out is not MISS:
            entry.waits = 0
            answers.cache.adopt(entry, recording, seen)
            self.promote(entry, recording)
            holdings.hold(answers.cache, self._gate.lock, entry, recording)
            if recording.effects:
                answers.warn_of_effects(recording.effects)
            return lambda: out
        mismatch = first_mismatch(recording.signature, call) if not is_disturbed else None
        recording.drop()
        if is_disturbed:
            return partial(answers.eagerly, entry, call, OTHERS)
        return partial(answers.refused, entry, Refusal(does_not_fit(mismatch)), call)

    def promote(self, entry: Entry, recording: Recording) -> None:
        """Have the next tier of a recording compiled, if the budget has room for that; else a later call asks again."""
        budget = self._answers.cache.budget
        if budget.may_compile(entry):
            promote(recording, self._answers.name, self._gate.lock, partial(budget.compiled, entry))
        elif not recording.tier:
            recording.tier = "Inductor compiles it when the compile budget has room for that"

    def _made(self, call: Call, seen: Observation, *, has_changed: bool) -> Recording:
        """A recording for `call`, of which nothing has run; raises reasons and errors of our own alone.

        Made without the lock; then nobody is inside of the program, or someone stays there. `UsageError`: somebody captures in
        this thread, and captures do not nest.
        """
        self._answers.cache.use(None)  # other threads' calls come to the gate
        try:
            with self._gate.let_go(), Boundary("recording a call", reasons=(Busy, UsageError)):
                recording = self._record(call, seen.log)
        except Refusal as reason:
            if not isinstance(reason, TooEarly):
                # What is counted on each call was found first: it may be all that is in the way.
                if self._answers.cache.keys.state.add(reason.counted):
                    raise _CountsUp from reason
                # Something else makes the difference, and not the numbers of the state.
                is_other = reason.is_of_other or (isinstance(reason, Differing) and not call.numbers)
                if call.has_numbers and not is_other:
                    raise _NumbersStay(reason.needed, reason.reason.where) from reason
                where = self._answers.cache.keys.state.needed_at(reason.counted)
                if where is not None:
                    why = f"{reason.reason.why}; it needs the number itself at {where.called_from or where}"
                    reason.reason = replace(reason.reason, why=why)
            raise
        self._gate.drain()
        return recording

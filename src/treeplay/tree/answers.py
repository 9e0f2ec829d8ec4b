"""What a call gets that no recording serves: the program as it is, or what is in its way. Each is counted with its reason.

Effects happen once: a method that runs the program is for a call of which nothing has run. What our stages raise ends here: a
refusal is a reason, anything else an error of our own. A key with two such errors is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

from treeplay.errors import InternalError, ProgramRaised, RanOtherwise, Refusal
from treeplay.observe import counters, warn_once
from treeplay.observe.events import log_refusal
from treeplay.observe.internal import tell_internal
from treeplay.observe.lines import with_own_line
from treeplay.sandbox.boundary import internal
from treeplay.trace.call import Call
from treeplay.tree.cache import Cache
from treeplay.tree.decide import KeyPhase
from treeplay.tree.gate import Gate
from treeplay.tree.handled import RaisedInside, errors_noted
from treeplay.tree.reasons import broken_twice, handles_errors
from treeplay.tree.table import Entry, Recording
from treeplay.values.refusal import Reason

E = TypeVar("E", bound=Exception)
_MOST_ERRORS = 2  # of our own, before a key is left alone
_FEW_HANDLED, _RARELY = 3, 4  # errors that the program handles: more than so many, in more than every fourth call
# What calls were that launched no recording, besides what a device has to say.
OBSERVED = "observed"
RAISED = "ended by an error"
REFUSED = "refused"
BROKEN = "after an error of treeplay's"
OTHERS = "another thread records"
TOO_EARLY = "too early to record"
OVER_BUDGET = "new, and over the compile budget"
TIMED = "timed beside a recording"
OUTDONE = "as fast unrecorded"
EVICTED = "over the memory budget"
REPLAYING = "a replay raised"


class Answers:
    """`on_refusal` says whether a call is told of a refusal, or runs."""

    def __init__(self, program: Callable[..., Any], cache: Cache, gate: Gate, *, on_refusal: str) -> None:
        self.program = program
        self.on_refusal = on_refusal
        self.name = cache.name
        self.cache = cache
        self._gate = gate

    def eagerly(self, entry: Entry, call: Call, why: str) -> Any:
        """Run the program as it is."""
        # First: a call in which the program raises counts, too.
        self.count(entry, why)
        return self.as_it_is(call)

    def as_it_is(self, call: Call) -> Any:
        """Run the program, uncounted."""
        with self._gate.inside():
            return self.program(*call.args, **call.kwargs)

    def timed(self, entry: Entry, timing: AbstractContextManager[None], call: Call) -> Any:
        """Run the program as it is, beside a recording on probation."""
        self.count(entry, TIMED)
        with self._gate.inside(), timing:
            return self.program(*call.args, **call.kwargs)

    def left_alone(self, entry: Entry, call: Call, why: str) -> Any:
        """Run it as it is for a reason that later calls have too: few of those are looked at."""
        start = perf_counter()
        cost = start - self.cache.began
        try:
            return self.eagerly(entry, call, why)
        finally:  # also where the program raises, which it may do in each call
            self.cache.leave_alone(entry, call, why, cost=cost, ran=perf_counter() - start)

    def as_before(self, entry: Entry, call: Call) -> Any:
        """A call of a key that is left alone."""
        if entry.phase in (KeyPhase.OUTDONE, KeyPhase.EVICTED):
            return self.left_alone(entry, call, OUTDONE if entry.phase is KeyPhase.OUTDONE else EVICTED)
        if entry.phase is not KeyPhase.REFUSED:
            return self.left_alone(entry, call, f"under {entry.reason.op}" if entry.reason is not None else "eager")
        if self.on_refusal == "raise" and entry.reason is not None:
            raise self.raised(Refusal(entry.reason))
        return self.left_alone(entry, call, REFUSED)

    def refused(self, entry: Entry, refusal: Refusal, call: Call) -> Any:
        """Leave the key alone from now on."""
        reason = self.note_refusal(entry, refusal.reason)
        if self.on_refusal == "raise":
            raise self.raised(refusal if reason.where is refusal.where else Refusal(reason)) from refusal.__cause__
        self.warn(entry, reason)
        return self.left_alone(entry, call, REFUSED)

    def broken(self, entry: Entry, error: InternalError, call: Call) -> Any:
        """After an error of our own: the program as it is, unless errors are to be raised."""
        if self.on_refusal == "raise":
            entry.errors.append(error.text)
            raise self.raised(error)
        self.note_broken(entry, error)
        return self.eagerly(entry, call, BROKEN)

    def instead(
        self, entry: Entry, recording: Recording, error: Exception, call: Call, *, why: str | None, doing: str
    ) -> Any:
        """For a replay that raised. What the program raises too is its own; if it raises nothing, and has handled nothing, the
        error was ours. The call is counted as eager because of `why`; None if it is counted already."""
        with errors_noted() if why != BROKEN else nullcontext() as inside:
            out = self.eagerly(entry, call, why) if why is not None else self.as_it_is(call)
        if inside is not None and inside.is_any:
            self._note_handled(entry, recording, inside)
            return out
        self.cache.drop(entry, recording)
        self.note_broken(entry, as_internal(error, doing))
        return out

    def to_tell(self, entry: Entry, raised: ProgramRaised, call: Call) -> Any:
        """For a program that raised while it was looked at. It runs as it is first: what it raises there too is its own, and no
        reason to refuse it."""
        if not isinstance(raised.error, Exception):  # also a signal's handler and another thread can end a program so
            self.eagerly(entry, call, REFUSED)
            raise raised.error
        if self.on_refusal == "raise" and not (raised.is_own or raised.is_treeplays):
            return self.refused(entry, raised, call)
        if raised.is_treeplays and self.on_refusal == "raise":
            raise self.raised(internal(raised.error, "tracing a call"))
        out = self.eagerly(entry, call, BROKEN if raised.is_treeplays else REFUSED)
        if raised.is_treeplays:
            self.note_broken(entry, internal(raised.error, "tracing a call"))
            return out
        self.note_later(entry, raised.reason)
        return out

    def ran_otherwise(self, entry: Entry, ran: RanOtherwise) -> Any:
        """Refuse the key after a call that has had its effects: its result."""
        self.warn(entry, self.note_refusal(entry, ran.reason))
        self.count(entry, REFUSED)
        return ran.result

    # --- what is noted --------------------------------------------------------------------------------------

    def note_refusal(self, entry: Entry, reason: Reason) -> Reason:
        """Refuse the key for this reason; one that is about a library gets the user's line that calls."""
        reason = replace(reason, where=with_own_line(reason.where))
        entry.phase, entry.reason = KeyPhase.REFUSED, reason
        seen = entry.observations[-1] if entry.observations else None
        # Of what is recorded without a trace there is no log: another look would take several runs of it.
        entry.refused_with = seen.found.plain_values() if seen is not None and seen.log else {}
        entry.observations.clear()
        self.cache.budget.refused(entry, entry.spent + perf_counter() - self.cache.began)
        self.cache.tally.refusals += 1
        counters.add("refusals", reason.op)
        log_refusal(self.name, reason)
        return reason

    def note_later(self, entry: Entry, reason: Reason) -> None:
        """Refuse the key after a call that has had its effects. If refusals are to be raised, the next call is told."""
        reason = self.note_refusal(entry, reason)
        if self.on_refusal == "eager":
            self.warn(entry, reason)

    def _note_handled(self, entry: Entry, recording: Recording, inside: RaisedInside) -> None:
        """Note an error that the program handles. If many calls have one, each of them a replay for nothing, the key is left
        alone."""
        entry.handled += 1
        if entry.handled > _FEW_HANDLED and entry.handled * _RARELY > entry.calls:
            self.cache.drop(entry, recording)
            self.warn(entry, self.note_refusal(entry, handles_errors(inside.where)))

    def note_broken(self, entry: Entry, error: InternalError) -> None:
        """Note an error of our own. A key with two of them is left alone."""
        entry.errors.append(error.text)
        tell_internal(error, self.name)
        if len(entry.errors) >= _MOST_ERRORS:
            for recording in list(entry.recordings):
                self.cache.drop(entry, recording)
            entry.phase, entry.reason = KeyPhase.REFUSED, broken_twice(error)
            entry.observations.clear()

    def raised(self, error: E) -> E:
        """Note that a call is told what is in its way, instead of being run."""
        self.cache.tally.raised["a refusal was raised" if isinstance(error, Refusal) else "an error was raised"] += 1
        return error

    def replay_raised(self) -> None:
        """Count a call that went to a recording and raised."""
        self.cache.tally.raised[REPLAYING] += 1

    def warn(self, entry: Entry, reason: Reason) -> None:
        """Tell of a refusal, each text once. One that may pass tells how two calls differ, and would do so in other words each
        time that a key is tried again: only its first refusal is told."""
        if entry.refused > 1 and reason.may_pass:
            return
        more = (
            "\n  more:   treeplay.check(...) tells all that is in the way at once" if reason.where is not None else ""
        )
        warn_once(f"treeplay runs {self.name} eagerly. {reason}{more}")

    def warn_of_effects(self, effects: tuple[Reason, ...]) -> None:
        """Tell, once, of what the program did besides computing: it will not do it again."""
        told = "\n".join(str(effect) for effect in effects)
        warn_once(f"treeplay replays {self.name} from now on. {told}")

    def count(self, entry: Entry, why: str) -> None:
        """Count a call that launches no recording."""
        entry.eager_calls[why] += 1
        self.cache.tally.eager[why] += 1


def as_internal(error: Exception, doing: str) -> InternalError:
    """An exception that a stage of ours raised, as an `InternalError`; one that was told already is itself."""
    return error if isinstance(error, InternalError) and error.text else internal(error, doing)

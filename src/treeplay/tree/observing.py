"""A call that is observed: it runs eagerly, and what was seen of it is what a later one may be recorded with."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from treeplay.errors import InternalError, Refusal
from treeplay.sandbox.boundary import Boundary
from treeplay.trace.call import Call
from treeplay.trace.survey.recordable import survey_call
from treeplay.tree.answers import OBSERVED, RAISED, Answers
from treeplay.tree.decide import KeyPhase
from treeplay.tree.gate import Gate
from treeplay.tree.keys.key import values_in_objects
from treeplay.tree.table import Entry, Observation

Observe = Callable[[Callable[..., Any], Call], tuple[Any, list[Any]]]
_MOST_OBSERVATIONS = 4


class CallObserver:
    """Observes calls of a program. `watch` runs it and gives the result and the log."""

    def __init__(self, program: Callable[..., Any], watch: Observe, gate: Gate, answers: Answers) -> None:
        self._program = program
        self._watch = watch
        self._gate = gate
        self._answers = answers
        self._cache = answers.cache

    def observe(self, entry: Entry, call: Call) -> Any:
        """Run a call as it is, and keep what was seen of it for its entry."""
        self._answers.count(entry, OBSERVED)
        start = perf_counter()
        try:
            with self._cache.budget.spending(entry), self._gate.inside():
                out, log = self._watch(self._program, call)
                seen = self._seen(entry, call, log)
        except Exception:  # one that raises in each call is never seen to its end: few of those calls are observed
            took = perf_counter() - start
            self._cache.leave_alone(entry, call, RAISED, cost=took, ran=took)
            raise
        if seen is None or entry.phase is KeyPhase.REFUSED:  # by another thread, meanwhile
            return out
        del entry.observations[: -_MOST_OBSERVATIONS + 1]  # a later call may agree with one of them
        entry.observations.append(seen)
        entry.phase = KeyPhase.RECORDED if entry.recordings else KeyPhase.OBSERVED
        entry.was_observed = True
        self._cache.evict()
        return out

    def _seen(self, entry: Entry, call: Call, log: list[Any]) -> Observation | None:
        """What was observed of a call that has had its effects; None where that breaks, and the next call is told."""
        try:
            with Boundary("observing a call"):
                if (failure := getattr(log, "failure", None)) is not None:
                    raise failure
                # What the program itself counts up is as it leaves it: the trace finds such changes and names their line.
                return Observation(log, survey_call(self._program, call).watched_only(), values_in_objects(call))
        except Refusal as refusal:
            self._answers.note_later(entry, refusal.reason)
        except InternalError as error:
            self._answers.note_broken(entry, error)
        return None

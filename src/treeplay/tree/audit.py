"""The audit of recordings: a second line behind the guards.

What no guard can see (the state that an extension keeps in C, files, another process) may decide what a program does. So
after 10, 100, 1,000, ... replays a recording's program is traced again, on fakes and without effect, and compared with the
trace that the recording was made of. A difference is told loudly, and the program is recorded anew.

An audit waits until it and those before it take at most a thousandth of the time since the recording was made.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from treeplay.errors import Refusal, TooEarly
from treeplay.trace.call import Call
from treeplay.trace.log import LoggedCall, first_difference
from treeplay.trace.traced import Trace
from treeplay.trace.turn import Busy
from treeplay.values.refusal import Reason

FIRST_AFTER = 10
"""Replays before the first audit; each later one comes after ten times as many."""
MOST_OF_THE_TIME = 0.001
"""What audits may take of the time since the recording was made."""

Retrace = Callable[[Call], Trace]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a trace was, as far as another one is compared with it."""

    log: list[LoggedCall]
    graph: str
    effects: tuple[str, ...]

    @classmethod
    def of(cls, traced: Trace) -> Evidence:
        """The evidence of a trace."""
        signature = traced.signature
        effects = [f"{write.place} = {write.value}" for write in signature.writes]
        effects += [f"result {signature.results} {signature.refs}", *map(str, signature.inputs)]
        return cls(traced.log, str(traced.graph), tuple(effects))

    def difference(self, other: Evidence) -> Reason | None:
        """Where another trace differs from this one, or None."""
        numbers = first_difference(self.log, other.log, ("when it was recorded", "now"))
        if numbers is not None:
            return numbers
        for old, new in zip(self.log, other.log, strict=False):
            if old.key != new.key or not new.has_numbers_of(old):
                return _another(f"{new.op} where it took {old.op}", new)
        if len(self.log) != len(other.log):
            return _another(f"{len(other.log)} operators where it took {len(self.log)}", (other.log or self.log)[-1])
        for before, now in zip(self.effects, other.effects, strict=False):
            if before != now:
                return _another(f"leaves {now} where it left {before}", None)
        if self.graph != other.graph:
            return _another("takes the same operators on other tensors", None)
        return None


def _another(what: str, entry: LoggedCall | None) -> Reason:
    return Reason(
        op=entry.op if entry is not None else "program",
        why=f"no longer does what was recorded: {what}; what it depends on is seen by no guard",
        advice="pass what changes as an argument, or keep it in an attribute, a closure or a global",
        where=entry.where if entry is not None else None,
    )


class Audit:
    """When a recording is audited next, and what it is compared with."""

    def __init__(
        self, traced: Trace, retrace: Retrace, seconds: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._evidence = Evidence.of(traced)
        self._retrace = retrace
        self._clock = clock
        self._made = clock()
        self._seconds = seconds  # what one trace takes
        self._spent = 0.0
        self.count = 0
        self.due = FIRST_AFTER  # replays of the recording

    def may_run(self, replays: int) -> bool:
        """Whether an audit is due that the time since the recording was made has room for; else it is put off."""
        if replays < self.due:
            return False
        elapsed = self._clock() - self._made
        if self._spent + self._seconds <= MOST_OF_THE_TIME * elapsed:
            return True
        self.due = replays + max(1, replays // 10)
        return False

    def run(self, call: Call, replays: int) -> Reason | None:
        """Trace the program again for `call`, which the recording fits: how it differs, or None. Has no effect."""
        start = self._clock()
        try:
            difference = self._evidence.difference(Evidence.of(self._retrace(call)))
        except (Busy, TooEarly):
            # Nothing was found out: the next audit is due as after any other.
            difference = None
        except Refusal as refusal:
            difference = refusal.reason
        self._seconds = self._clock() - start
        self._spent += self._seconds
        self.count += 1
        power = FIRST_AFTER
        while power <= replays:
            power *= 10
        self.due = power
        return difference

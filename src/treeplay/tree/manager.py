"""The manager of one program: finds the recording for a call, or decides what to do without one.

    warm call: the last recording's call function, nothing else
    otherwise: key ─▶ entry ─▶ its recordings in turn ─▶ decide ─▶ observe | record | run eagerly

Every call's effects happen exactly once, whichever way it ran. Prepare, act, commit: an entry changes only after the step
that may fail has succeeded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from treeplay.errors import InternalError, Refusal
from treeplay.facts.refusal import Reason
from treeplay.facts.structure import flatten
from treeplay.observe import counters, warn_once
from treeplay.settings import settings
from treeplay.trace.jit import Call
from treeplay.trace.observe import Observer
from treeplay.tree.decide import Action, CallFacts, Phase, decide
from treeplay.tree.key import label_of, make_key, varying
from treeplay.tree.mismatch import first_mismatch
from treeplay.tree.table import Entry, Recording, Table
from treeplay.wrap.emit import MISS

Record = Callable[[Call, list[Any]], Recording]
CallFunction = Callable[[tuple[Any, ...], dict[str, Any]], Any]


def _never(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return MISS


@dataclass(slots=True)
class Tally:
    """Calls that were not warm replays, counted as they happen."""

    eager: int = 0
    refusals: int = 0
    dropped: int = 0
    recordings: int = 0


class Manager:
    """Owns a program's table of recordings. Not safe for threads: its owner takes turns."""

    def __init__(self, program: Callable[..., Any], record: Record, *, name: str, on_refusal: str) -> None:
        self.program = program
        self.record = record
        self.name = name
        self.on_refusal = on_refusal
        self.table = Table()
        self.tally = Tally()
        self.warm: CallFunction = _never
        self._last: Recording | None = None
        self.warm_calls = 0

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call: replayed if a recording fits, else as decided."""
        out = self.warm(args, kwargs)
        if out is not MISS:
            self.warm_calls += 1
            return out
        return self._find(args, kwargs)

    def reset(self) -> None:
        """Forget every recording and every refusal."""
        self.table.clear()
        self._use(None)

    def settle(self) -> None:
        """Credit warm calls to the recording that served them."""
        if self._last is not None:
            self._last.replays += self.warm_calls
        self.warm_calls = 0

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        leaves, structure = flatten((args, kwargs))
        call = Call(args, kwargs, leaves, structure)
        try:
            key = make_key(call)
        except Refusal as refusal:
            return self._refused(Entry("unhashable"), refusal.reason, call)
        entry = self.table.entry(key, lambda: label_of(call))
        for recording in reversed(entry.recordings):
            out = recording.call(args, kwargs)
            if out is not MISS:
                self._use(recording)
                recording.replays += 1
                return out
        facts = CallFacts(entry.phase, entry.rerecordings, settings.max_rerecordings)
        return self._act(decide(facts), entry, call)

    def _use(self, recording: Recording | None) -> None:
        self.settle()
        self._last = recording
        self.warm = recording.call if recording is not None else _never

    def _act(self, action: Action, entry: Entry, call: Call) -> Any:
        match action:
            case Action.OBSERVE:
                return self._observe(entry, call)
            case Action.RECORD:
                return self._record(entry, call)
            case Action.REFUSE:
                return self._refused(entry, _too_often(self.name, entry), call)
            case Action.RUN_EAGERLY:
                return self._eager(entry, call)

    def _eager(self, entry: Entry, call: Call) -> Any:
        entry.eager_calls += 1
        self.tally.eager += 1
        return self.program(*call.args, **call.kwargs)

    def _observe(self, entry: Entry, call: Call) -> Any:
        if entry.recordings:
            entry.rerecordings += 1
            mismatch = first_mismatch(entry.recordings[-1].signature, call)
            entry.causes.append(str(mismatch) if mismatch else "arguments share memory differently")
            counters.add("rerecordings", mismatch.what if mismatch else "memory")
        entry.eager_calls += 1
        self.tally.eager += 1
        observer = Observer()
        with observer:
            out = self.program(*call.args, **call.kwargs)
        entry.log, entry.phase = observer.log, Phase.OBSERVED
        self._evict()
        return out

    def _record(self, entry: Entry, call: Call) -> Any:
        try:
            recording = self.record(call, entry.log)
        except Refusal as refusal:
            return self._refused(entry, refusal.reason, call)
        out = recording.call(call.args, call.kwargs)
        if out is MISS:
            broken = first_mismatch(recording.signature, call)
            raise InternalError(f"a new recording of {self.name} does not fit the call it was made for: {broken}")
        entry.recordings.append(recording)
        entry.phase, entry.log = Phase.RECORDED, []
        recording.replays += 1
        self.tally.recordings += 1
        self._use(recording)
        self._evict()
        return out

    def _refused(self, entry: Entry, reason: Reason, call: Call) -> Any:
        entry.phase, entry.reason = Phase.REFUSED, reason
        entry.log = []
        self.tally.refusals += 1
        counters.add("refusals", reason.op)
        if self.on_refusal == "raise":
            entry.phase = Phase.OBSERVED if entry.phase is Phase.REFUSED and not entry.recordings else entry.phase
            raise Refusal(reason)
        warn_once(f"treeplay runs {self.name} eagerly. {reason}")
        return self._eager(entry, call)

    def _evict(self) -> None:
        most = settings.max_recordings_per_program
        labels = [entry.label for entry in self.table]
        dropped = self.table.evict(most)
        if not dropped:
            return
        self.tally.dropped += len(dropped)
        if any(self._last in entry.recordings for entry in dropped):
            self._use(None)
        warn_once(
            f"treeplay keeps {most} recordings of {self.name} and drops the least recently used: what varies from call to "
            f"call is {varying(labels)}. Keep it constant (pad shapes, pass numbers as tensors), or raise "
            "treeplay.settings.max_recordings_per_program."
        )


def _too_often(name: str, entry: Entry) -> Reason:
    return Reason(
        op="state",
        why=f"{name} was recorded anew {entry.rerecordings} times, the last time because of {entry.causes[-1]}",
        advice="keep the state in place (p.copy_(...) under torch.no_grad()) instead of reassigning it, "
        "or raise treeplay.settings.max_rerecordings",
    )

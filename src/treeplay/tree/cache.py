"""The recordings of one program: the one that served the last call, whose call function is tried first; all others by key, and
how they come and go. Which key a call has, and which keys get an entry, is in `keys.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.observe import counters, warn_once
from treeplay.observe.events import log_event
from treeplay.settings import settings
from treeplay.torch_seam.modes import default_device
from treeplay.trace.call import Call
from treeplay.tree.all_sizes.sizes import ChangingSizes
from treeplay.tree.decide import KeyPhase
from treeplay.tree.keys.glances import Glances
from treeplay.tree.keys.key import varying
from treeplay.tree.keys.keys import Keys
from treeplay.tree.mismatch import nearest_mismatches
from treeplay.tree.reasons import not_faster
from treeplay.tree.table import MOST_TRIES, Entry, EntryTable, Observation, Recording
from treeplay.tree.tiers import compile_thread
from treeplay.tree.worth.budget import Budget, Pause
from treeplay.wrap.emit import MISS

CallFunction = Callable[[tuple[Any, ...], dict[str, Any]], Any]
_NEVER = 2**62


def _is_compiling() -> bool:
    return compile_thread.is_busy


def no_recording(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The call function where there is none."""
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


class Cache:
    """For a thread that holds the program's lock. A warm call reads `warm` and `device`, and counts itself in `warm_calls`."""

    def __init__(self, name: str, *, may_free_numbers: bool = True) -> None:
        self.name = name
        self._may_free_numbers = may_free_numbers
        self.tally = Tally()
        self.table = EntryTable()
        self.glances = Glances()
        self.sizes = ChangingSizes()
        self.budget = Budget(_is_compiling)
        self.pause = Pause()  # of all calls
        self.keys = self._new_keys()
        self.began = 0.0  # the look at a call that is under way
        self.last: Recording | None = None
        self.warm: CallFunction = no_recording
        self.device: torch.device | None = None  # the default device under which the last recording was called
        self.warm_calls = 0
        self.due = _NEVER  # warm calls until the next look at whether the last recording is to be audited

    def _new_keys(self) -> Keys:
        return Keys(self.name, self.table, self.budget, self.pause, may_free_numbers=self._may_free_numbers)

    # --- the last recording ---------------------------------------------------------------------------------

    def use(self, recording: Recording | None) -> None:
        """Have the next call try this recording first; with None, each call comes to the gate."""
        # First: the warm calls so far went to what has been the last recording until now.
        self.settle()
        self.device = default_device()
        self.last = recording
        self.warm, self.due = no_recording, _NEVER
        if recording is None:
            return
        if recording.audit is not None and settings.audit:
            self.due = recording.audit.due - recording.calls
        if recording.probation is not None:
            self.due = min(self.due, recording.probation.due - recording.calls)
            if recording.probation.is_under_way:  # each call of a round is looked at
                return
        self.warm = recording.call

    def settle(self) -> None:
        """Credit warm calls to the recording that served them, and calls that were left alone to their reason."""
        alone = self.pause.taken()
        if alone:
            self.pause.entry.eager_calls[self.pause.why] += alone
            self.tally.eager[self.pause.why] += alone
        if self.last is not None:
            self.last.calls += self.warm_calls
        self.tally.went += self.warm_calls
        self.warm_calls = 0

    def served(self, recording: Recording) -> None:
        """Count a call that went to a recording, which the next one tries first."""
        recording.calls += 1
        self.tally.went += 1
        self.use(recording)

    def leave_alone(self, entry: Entry, call: Call, why: str, *, cost: float, ran: float) -> None:
        """Note that a look at a call, which took `cost` seconds, found that it runs eagerly, and `ran` so long. All calls are
        left alone for a while if none is replayed, else those with such arguments."""
        self.settle()
        self.pause.looked(entry, why, cost=cost, ran=ran, served=self.tally.went)
        if self.pause.left > 0:
            self.use(None)  # a call that is left alone does not ask whether the last recording fits either
        else:
            self.glances.leave_alone(entry, call, why, cost=cost, ran=ran)

    def entry_of(self, recording: Recording) -> Entry:
        """The entry that has a recording; one that is in no table if it was reset meanwhile."""
        return next((entry for entry in self.table if recording in entry.recordings), None) or Entry({"unknown": ""})

    # --- what comes and goes --------------------------------------------------------------------------------

    def adopt(self, entry: Entry, recording: Recording, seen: Observation) -> None:
        """Keep a recording that has served the call it was made for, of what was `seen` of an earlier one."""
        if not self.table.holds(entry):  # it was reset meanwhile
            self.tally.went += 1
            self.table.free([recording])
            return
        self.budget.recorded(entry)
        self.pause.paid_off()
        entry.recordings.append(recording)
        entry.forget(seen)
        entry.recorded_with = seen.found.plain_values()
        entry.phase, entry.differing, entry.tries = KeyPhase.RECORDED, False, MOST_TRIES
        self.tally.recordings += 1
        self.served(recording)
        self.evict()

    def drop(self, entry: Entry, recording: Recording) -> None:
        """Forget a recording, so that a later call makes another one."""
        self.settle()
        self.table.take_out(entry, recording)
        if not entry.recordings and entry.phase is KeyPhase.RECORDED:
            entry.phase = KeyPhase.NEW
        self.glances.forget_gone(self.table)
        if recording is self.last:
            self.use(None)

    def outdone(self, entry: Entry, recording: Recording, told: str) -> None:
        """Forget a recording that is no faster than its program, as was `told`: calls run as they are for a good while."""
        self.drop(entry, recording)
        entry.observations.clear()
        entry.phase, entry.reason = KeyPhase.OUTDONE, not_faster(told)
        self.budget.outdone(entry, sum(recording.seconds.values()))
        self.tally.dropped += 1
        counters.add("recordings dropped", "not faster")
        log_event("recordings", f"{self.name}: that of {entry.label} was not faster and went: {told}")

    def let_go_for_memory(self, entry: Entry, recording: Recording) -> None:
        """Forget a recording whose memory is for others."""
        self.drop(entry, recording)
        if not entry.recordings:
            entry.observations.clear()
            entry.phase, entry.is_free = KeyPhase.EVICTED, False
        self.tally.dropped += 1
        counters.add("recordings dropped", "memory")
        log_event("recordings", f"{self.name}: that of {entry.label} was dropped to make room")

    def let_go(self, entry: Entry, call: Call) -> None:
        """Drop recordings whose guards alone keep something alive that the program would find to be gone."""

        def why(recording: Recording) -> str:
            found = nearest_mismatches([recording.signature], call) if recording in entry.recordings else ()
            return "; ".join(map(str, found))

        self.settle()  # its warm calls, which no entry has once it is dropped
        dropped = self.table.let_go(why)
        if dropped:
            self.glances.forget_gone(self.table)
        if self.last in dropped:
            self.use(None)

    def evict(self) -> None:
        """Drop the least recently used where there are too many."""
        most = settings.max_recordings_per_program
        calls = [entry.arguments for entry in self.table]  # with those that go: the warning tells what varies among all
        dropped = self.table.evict(most)
        if not dropped:
            return
        self.tally.dropped += len(dropped)
        self.glances.forget_gone(self.table)
        log_event("recordings", f"{self.name}: dropped those of {'; '.join(entry.label for entry in dropped)}")
        if any(self.last in entry.recordings for entry in dropped):
            self.use(None)
        warn_once(
            f"treeplay keeps {most} recordings of {self.name} and drops the least recently used: what varies from call to "
            f"call is {varying(calls)}. Keep it constant (pad shapes, pass numbers as tensors), or raise "
            "treeplay.settings.max_recordings_per_program."
        )

    def look_again(self) -> None:
        """Leave no call alone any more: there is something new that may serve it."""
        self.settle()
        self.pause.end()
        self.glances.clear()

    def reset(self) -> None:
        """Forget every recording and every refusal."""
        self.settle()
        self.glances.clear()
        self.sizes = ChangingSizes()
        self.budget, self.pause = Budget(_is_compiling), Pause()
        self.keys = self._new_keys()
        self.table.clear()
        self.use(None)

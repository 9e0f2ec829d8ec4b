"""The recordings of one program: the one that served the last call, whose call function is tried first, and all by key."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.observe import counters, warn_once
from treeplay.observe.events import log_event
from treeplay.settings import settings
from treeplay.torch_seam.modes import default_device
from treeplay.trace.call import Call, call_of
from treeplay.tree.budget import Budget, Pause
from treeplay.tree.decide import KeyPhase
from treeplay.tree.glances import Glances
from treeplay.tree.key import Key, describe, has_fakes, kind_of, make_key, varying
from treeplay.tree.mismatch import key_mismatches, nearest_mismatches
from treeplay.tree.numbers import VaryingNumbers
from treeplay.tree.reasons import OF_FAKES, not_faster, under_mode
from treeplay.tree.sizes import ChangingSizes
from treeplay.tree.strangers import Stranger, Strangers
from treeplay.tree.table import MOST_TRIES, Entry, EntryTable, Observation, Recording
from treeplay.tree.tiers import compile_thread
from treeplay.values.flatten import holds_tensors, may_open
from treeplay.values.structure import is_unhashable
from treeplay.wrap.emit import MISS

CallFunction = Callable[[tuple[Any, ...], dict[str, Any]], Any]
_NEVER = 2**62
_MOST_OBJECTS = 16  # that come once each, before calls with such are left alone


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
        self.may_free_numbers = may_free_numbers
        self.tally = Tally()
        self.table = EntryTable()
        self.strangers = Strangers()
        self.passing_object: set[Hashable] = set()  # keys by class, of calls with objects that do not come again
        self.numbers = VaryingNumbers()
        self.glances = Glances()
        self.sizes = ChangingSizes()
        self.budget = Budget(_is_compiling)
        self.pause = Pause()  # of all calls
        self.began = 0.0  # the look at a call that is under way
        self.opened: set[type] = set()  # classes of objects that count as what they hold: another one came in each call
        self.last: Recording | None = None
        self.warm: CallFunction = no_recording
        self._has_told_of_strangers = False
        self.device: torch.device | None = None  # the default device under which the last recording was called
        self.warm_calls = 0
        self.due = _NEVER  # warm calls until the next look at whether the last recording is to be audited

    # --- the last recording ---------------------------------------------------------------------------------

    def use(self, recording: Recording | None) -> None:
        """Have the next call try this recording first; with None, each call comes to the gate."""
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

    # --- keys -----------------------------------------------------------------------------------------------

    def find(self, call: Call) -> tuple[Key, Entry]:
        """The key of a call, and its entry: a new one is in no table yet. Raises `Refusal` for arguments that have no key."""
        key = make_key(call)
        if self.passing_object and (kind := kind_of(key)) is not None and kind in self.passing_object:
            key = kind
        entry = self.table.get(key) or Entry({})
        return key, entry

    def admit(self, entry: Entry, key: Key, call: Call) -> bool:
        """Have a new entry in the table, if there is a place and the budget is for it. A key that is not admitted is told from
        the others, once."""
        kind = kind_of(key)
        mark = hash(key if kind is None else kind)
        stranger = self.strangers.of(mark)
        has_place = self._has_place(stranger)
        if has_place and self.budget.admits(entry, stranger.times + 1 if kind is None else 1):
            self._enter(entry, key, call)
            self.pause.paid_off()
            return True
        self.strangers.came(mark, self.table.uses)
        if not self._has_told_of_strangers:
            self._has_told_of_strangers = True
            calls = [*(other.arguments for other in self.table), describe(call)]
            why, setting = (
                (f"recording each would take more than {settings.compile_budget:.0%} of the time", "compile_budget")
                if has_place
                else (f"there are more of them than {len(self.table)}", "max_recordings_per_program")
            )
            warn_once(
                f"treeplay runs calls of {self.name} as they are that no recording fits: what varies from call to call is "
                f"{varying(calls)}, and {why}. Keep it constant (pad shapes, pass numbers as tensors), or raise "
                f"treeplay.settings.{setting}."
            )
        return False

    def _has_place(self, stranger: Stranger) -> bool:
        """Whether a key may have an entry: there are few, or one was not used since the key came the last time. So keys that
        come in turn, more than are kept, do not drive each other out."""
        kept = max(len(self.table), self.table.recordings)
        is_full = kept >= settings.max_recordings_per_program and settings.compile_budget != math.inf
        return not is_full or self.table.oldest <= stranger.when

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """A call with these arguments, taken apart."""
        return self.numbers.marked(call_of(args, kwargs, self.opens, takes_arrays=self.may_free_numbers))

    def varies(self, entry: Entry, key: Key, call: Call) -> bool:
        """Whether a new entry differs from another one only by what need not be part of a key, and no longer is."""
        return self.opens_more(entry, key, call) or self._frees_numbers(key, call)

    def _frees_numbers(self, key: Key, call: Call) -> bool:
        others = [(other, at) for other, at in self.table.items() if isinstance(other, Key)]
        if not self.may_free_numbers or not self.numbers.found(key, call, (other for other, _ in others)):
            return False
        self._forget([other for other, at in others if at.phase is KeyPhase.OBSERVED and not at.recordings])
        return True

    def fix_numbers(self, entry: Entry, call: Call) -> None:
        """Have the numbers among a call's arguments, which were inputs, be part of the key from now on."""
        self.numbers.fix(call)
        self._forget([key for key, at in self.table.items() if at is entry])

    def _forget(self, keys: Iterable[Hashable]) -> None:
        self.budget.took_back(self.table.forget(keys))  # calls have other keys from now on

    def opens(self, value: Any) -> bool:
        """Whether an object among the arguments counts as what it holds, and not as itself."""
        return type(value) in self.opened or is_unhashable(value)

    def opens_more(self, entry: Entry, key: Key, call: Call) -> bool:
        """Whether a new entry differs only by objects that hold tensors from one whose objects came once: batches, it seems.

        From now on objects of their classes count as what they hold."""
        kind = kind_of(key)
        if kind is None:
            return False
        others = [(other, at) for other, at in self.table.items() if at is not entry and isinstance(other, Key)]
        once = [other for other, at in others if at.phase is KeyPhase.OBSERVED and kind_of(other) == kind]
        if not once:
            return False
        batches = {type(leaf) for leaf in call.leaves if may_open(leaf) and holds_tensors(leaf)}
        if not batches:
            return False
        self.opened |= batches
        self._forget([key, *once])
        return True

    def look_around(self, entry: Entry, key: Key, call: Call) -> None:
        """Note which mode keeps a new entry's calls eager."""
        mode = key.ambience.only_eagerly
        if mode is not None or has_fakes(call):
            entry.phase, entry.reason = KeyPhase.EAGER, under_mode(mode) if mode is not None else OF_FAKES
            self._enter(entry, key, call)

    def compare(self, entry: Entry, key: Key, call: Call) -> None:
        """Note what keeps a new entry's calls apart from the nearest that are recorded."""
        others = [(other, at) for other, at in self.table.items() if isinstance(other, Key) and at.recordings]
        differing = [
            key_mismatches(other.ambience, at.recordings[-1].signature, key.ambience, call) for other, at in others
        ]
        entry.differs = min(reversed(differing), key=len, default=())  # of two as near, the one used last
        for differs in entry.differs[:1]:
            log_event("guards", f"{self.name}: other arguments than in the calls that were recorded: {differs}")

    def comes_once(self, entry: Entry, key: Key, call: Call) -> bool:
        """Whether an object among the arguments has been another one in each of many calls, none of them twice.

        Then its calls share the new entry, from now on."""
        kind = kind_of(key)
        most = min(_MOST_OBJECTS, settings.max_recordings_per_program)
        if kind is None or len(self.table) + self.strangers.of(hash(kind)).times < most:
            return False
        if any(at.phase is not KeyPhase.OBSERVED or kind_of(other) != kind for other, at in self.table.items()):  # type: ignore[arg-type]
            return False
        self.table.clear()
        self.strangers.clear()
        self._enter(entry, kind, call)
        self.passing_object.add(kind)
        return True

    def _enter(self, entry: Entry, key: Key, call: Call) -> None:
        entry.arguments = describe(call)
        self.table.put(key, entry)

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
        entry.phase, entry.differing, entry.tries = KeyPhase.RECORDED, False, MOST_TRIES
        self.tally.recordings += 1
        self.served(recording)
        self.evict()

    def drop(self, entry: Entry, recording: Recording) -> None:
        """Forget a recording, so that a later call makes another one."""
        if recording in entry.recordings:
            entry.recordings.remove(recording)
            entry.calls_before += recording.calls
            if not entry.recordings and entry.phase is KeyPhase.RECORDED:
                entry.phase = KeyPhase.NEW
        self.glances.forget_gone(self.table)
        if recording is self.last:
            self.use(None)
        self.table.free([recording])

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
        self.settle()
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

        dropped = self.table.let_go(why)
        if dropped:
            self.glances.forget_gone(self.table)
        if self.last in dropped:
            self.use(None)

    def evict(self) -> None:
        """Drop the least recently used where there are too many."""
        most = settings.max_recordings_per_program
        calls = [entry.arguments for entry in self.table]
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
        self.pause.left = 0
        self.glances.clear()

    def reset(self) -> None:
        """Forget every recording and every refusal."""
        self.settle()
        self.passing_object.clear()
        self.strangers.clear()
        self.glances.clear()
        self.sizes = ChangingSizes()
        self.budget, self.pause, self._has_told_of_strangers = Budget(_is_compiling), Pause(), False
        self.opened.clear()
        self.numbers = VaryingNumbers()
        self.table.clear()
        self.use(None)

"""The recordings of one program: keys, their phase, and which recording goes when there are too many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from treeplay.device.protocol import Recorded, Stopwatch
from treeplay.device.use import Use
from treeplay.lower.lowered import Lowered
from treeplay.sandbox.interrupts import uninterrupted
from treeplay.trace.survey.found import Survey
from treeplay.tree.audit import Audit
from treeplay.tree.decide import KeyPhase
from treeplay.tree.keys.key import as_line
from treeplay.tree.worth.probation import Probation
from treeplay.values.launch import LaunchFacts
from treeplay.values.mismatch import Mismatch
from treeplay.values.place import Trail
from treeplay.values.plan import Plan
from treeplay.values.refusal import Reason
from treeplay.values.same import is_same
from treeplay.values.signature import Input, Signature

_NONE: Mapping[Any, Any] = MappingProxyType({})
MOST_TRIES = 2
"""How often a program is traced though something in its reach is not as it was in any call that was observed."""


@dataclass(frozen=True, slots=True)
class NextTier:
    """How to compile what a recording of operators runs, for the device that recorded them as `now`.

    `compile` is for any thread, holds no tensor of a call, and raises `LoweringError`; `watch` times launches there."""

    now: Recorded
    compile: Callable[[], tuple[Lowered, Recorded]]
    watch: Callable[[], Stopwatch]


@dataclass(frozen=True, slots=True)
class NextWrapper:
    """How to compile what takes the place of a recording that the caller differentiates.

    `compile` is for any thread, holds no tensor of a call, and raises `LoweringError`. `adopt` has calls go to it from then on.
    """

    compile: Callable[[], None]
    adopt: Callable[[Recording], None]


@dataclass(eq=False, slots=True, weakref_slot=True)
class Recording:
    """One recording: its call function, and what is worth showing of it. Owned by its entry."""

    call: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    signature: Signature
    plan: Plan
    lowering: str
    operators: int
    source: str
    seconds: dict[str, float]
    launch: Callable[[], LaunchFacts]  # how the device launches it by now
    free: Callable[[], None]  # gives back what the device holds for it; a later call records anew
    launched: int = 0  # the last line of the call function's launch; those after it set slots and make results
    calls: int = 0
    plain_calls: Callable[[], Counter[str]] = Counter  # those of them that launched nothing, by reason
    details: dict[str, Any] = field(default_factory=dict)
    moved: tuple[Input, ...] = ()  # state that moved to the device with the recording
    draws: bool = True  # whether it may draw random numbers
    effects: tuple[Reason, ...] = ()  # of the program's Python, which no replay has
    audit: Audit | None = None  # None: nothing was traced that could be traced again
    set_run: Callable[[Any], None] | None = None  # has its call function launch something else that does the same
    next_tier: NextTier | NextWrapper | None = None  # what may take its place, and is not compiled yet
    tier: str = ""  # what became of that, as text
    is_settling: bool = False  # whether something may still take its place
    probation: Probation | None = None  # until it is known to be faster than its program; None: it stays
    saved: float = 0.0  # seconds by each of its calls, if that was measured
    worth: str = ""  # what it and the program as it is were found to take, as text
    is_dropped: bool = False

    @property
    def replays(self) -> int:
        """The calls that launched it."""
        return self.calls - self.plain_calls().total()

    def drop(self) -> None:
        """Give back what the device holds for it, and hold nothing of the program any more. It is not called again."""
        self.is_dropped, self.next_tier = True, None
        self.free()
        guards = self.signature.guarded
        if guards is not None:
            guards.forget()


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """An eager call: the log of its operators, and what the program could reach, plain values included."""

    log: list[Any]
    found: Survey
    in_objects: dict[str, Any] = field(default_factory=dict)
    """Plain values in objects among the arguments, by path. They are no part of the key, for most are not read."""

    def changed(self, in_objects: Mapping[str, Any], but: Collection[Trail] = ()) -> str | None:
        """The first place whose plain value is another one in a call with these values; None if there is none. Numbers that are
        inputs, in the places in `but`, may be others."""
        place = self.found.changed(but)
        if place is not None:
            return str(place)
        old = self.in_objects.items()
        return next((name for name, value in old if not is_same(value, in_objects.get(name))), None)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Entry:
    """One key: calls with the same structure, shapes, static values and modes."""

    arguments: dict[str, str]  # each argument by name, as text
    is_free: bool = False  # whether it counts against no budget
    last_use: int = 0  # by which its table orders entries
    phase: KeyPhase = KeyPhase.NEW
    observations: list[Observation] = field(default_factory=list)
    recordings: list[Recording] = field(default_factory=list)
    recorded_with: dict[Trail, Any] = field(default_factory=dict)
    """Plain values that were seen of a call like that of the newest recording."""
    reason: Reason | None = None
    refused_with: dict[Trail, Any] = field(default_factory=dict)
    """Plain values that were seen of the call after which it was refused: with others, the reason may have passed."""
    eager_calls: Counter[str] = field(default_factory=Counter)  # by reason
    rerecordings: int = 0
    waits: int = 0  # calls that were too early to record
    was_observed: bool = False  # whether the last call of this key that was not replayed was observed
    tries: int = MOST_TRIES  # traces left that no observed call seems to agree with
    differing: bool = False  # whether the newest observation replaced one that the next call did not agree with
    causes: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # of treeplay's own, with their tracebacks
    handled: int = 0  # replays that raised what the program handles
    is_told: bool = False  # whether the newest cause is that of the call that is under way
    differs: tuple[Mismatch, ...] = ()  # from the nearest recording of another key
    outdone: int = 0  # recordings that were no faster than the program
    refused: int = 0  # times
    not_before: float = 0.0  # the moment from which on another one may be made
    spent: float = 0.0  # seconds for observing and recording, since it was new
    use: Use = field(default_factory=Use)
    calls_noted: int = 0  # of them, in `use`
    calls_before: int = 0  # that went to recordings which are gone

    @property
    def calls(self) -> int:
        """All its calls, as far as they were credited to it."""
        eager = sum(list(self.eager_calls.values()))  # in one step, for other threads count too
        return eager + self.calls_before + sum(recording.calls for recording in list(self.recordings))

    @property
    def was_recorded(self) -> bool:
        """Whether any recording of it has served a call."""
        return bool(self.recordings or self.calls_before)

    def observation(self, in_objects: Mapping[str, Any] = _NONE, but: Collection[Trail] = ()) -> Observation | None:
        """That of a call with the plain values of today, but for numbers that are inputs, or None."""
        return next((seen for seen in self.observations if seen.changed(in_objects, but) is None), None)

    def start_over(self) -> None:
        """Be a new key again: its recording went, or why it was refused may have passed."""
        self.phase, self.reason, self.differing, self.tries = KeyPhase.NEW, None, False, MOST_TRIES
        self.spent, self.refused_with = 0.0, {}

    def forget(self, seen: Observation) -> None:
        """Drop an observation, if it is still there."""
        self.observations = [other for other in self.observations if other is not seen]

    @property
    def label(self) -> str:
        """The arguments on one line."""
        return as_line(self.arguments)


class EntryTable:
    """Entries by key, the least recently used first."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, Entry] = {}
        self.uses = 0
        self.plain_calls: Counter[str] = Counter()  # of recordings that are gone

    def get(self, key: Hashable) -> Entry | None:
        """The entry of `key`, now the most recently used."""
        found = self._entries.get(key)
        if found is not None:
            self.used(found)
        return found

    def used(self, entry: Entry) -> None:
        """Have an entry be the most recently used, without its key, whose hash takes longer than a replay may."""
        self.uses += 1
        entry.last_use = self.uses

    @uninterrupted
    def put(self, key: Hashable, entry: Entry) -> None:
        """Have an entry under this key, the most recently used."""
        self._entries[key] = entry
        self.used(entry)

    def forget(self, keys: Iterable[Hashable]) -> int:
        """Drop the entries of these keys, which have no recordings; how many there were."""
        return sum(self._entries.pop(key, None) is not None for key in keys)

    def holds(self, entry: Entry) -> bool:
        """Whether an entry is still in it."""
        return any(known is entry for known in self._entries.values())

    def key_of(self, entry: Entry) -> Hashable:
        """The key under which an entry is, if it is."""
        return next((key for key, known in self._entries.items() if known is entry), None)

    def items(self) -> list[tuple[Hashable, Entry]]:
        """Keys and entries, the most recently used last."""
        return sorted(self._entries.items(), key=lambda item: item[1].last_use)

    def __iter__(self) -> Iterator[Entry]:
        return iter(sorted(self._entries.values(), key=lambda entry: entry.last_use))

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest(self) -> int:
        """The last use of the entry that was not used for the longest time."""
        return min((entry.last_use for entry in self._entries.values()), default=0)

    @property
    def recordings(self) -> int:
        """How many recordings there are in all."""
        return sum(len(entry.recordings) for entry in self._entries.values())

    def take_out(self, entry: Entry, recording: Recording) -> None:
        """Drop a recording, if its entry still has it, and give back what the device holds for it. Its calls count on."""
        if recording in entry.recordings:
            entry.recordings.remove(recording)
            entry.calls_before += recording.calls
        self.free([recording])

    def let_go(self, why: Callable[[Recording], str]) -> list[Recording]:
        """Drop recordings whose guards alone keep something alive that the program would find to be gone. `why` says what else
        keeps a recording from being replayed, if anything does."""
        dropped = []
        found = (recording.signature.guarded for entry in self for recording in entry.recordings)
        every = [guards for guards in found if guards is not None]
        for entry in self:
            for recording in [*entry.recordings]:
                guards = recording.signature.guarded
                if guards is not None and guards.keeps_alive(every):
                    entry.causes.append(why(recording) or "something that the program has a weak reference to is gone")
                    entry.is_told = True
                    self.take_out(entry, recording)
                    dropped.append(recording)
        return dropped

    @uninterrupted
    def evict(self, most: int) -> list[Entry]:
        """Drop entries, least recently used first, until at most `most` keys and `most` recordings are left."""
        dropped = []
        in_order = self.items()
        newest = in_order[-1][1] if in_order else None
        for key, entry in in_order[:-1]:  # the newest stays
            if len(self._entries) <= most and self.recordings <= most:
                break
            del self._entries[key]
            self.free(entry.recordings)
            dropped.append(entry)
        if newest is not None:
            for surplus in newest.recordings[: max(0, len(newest.recordings) - most)]:
                self.take_out(newest, surplus)
        return dropped

    def clear(self) -> None:
        """Forget everything, and give back what devices hold for it."""
        for entry in self:
            self.free(entry.recordings)
        self._entries.clear()

    def all_plain_calls(self) -> Counter[str]:
        """Calls that went to a recording and launched nothing, by reason; of recordings that are gone too."""
        alive = (recording.plain_calls() for entry in self for recording in entry.recordings)
        return sum(alive, self.plain_calls)

    def free(self, recordings: Iterable[Recording]) -> None:
        """Give back what devices hold for recordings that are dropped, and keep their counts."""
        for recording in recordings:
            self.plain_calls += recording.plain_calls()
            recording.drop()

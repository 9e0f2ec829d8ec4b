"""The recordings of one program: the one that served the last call, whose call function is tried first, and all by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from treeplay.observe import warn_once
from treeplay.settings import settings
from treeplay.torch_seam.modes import default_device
from treeplay.trace.call import Call
from treeplay.tree.decide import KeyPhase
from treeplay.tree.key import Key, describe, has_fakes, kind_of, make_key, varying
from treeplay.tree.mismatch import key_mismatches, nearest_mismatches
from treeplay.tree.reasons import OF_FAKES, under_mode
from treeplay.tree.table import MOST_TRIES, Entry, EntryTable, Observation, Recording
from treeplay.values.structure import holds_tensors, is_unhashable, may_open
from treeplay.wrap.emit import MISS

CallFunction = Callable[[tuple[Any, ...], dict[str, Any]], Any]
_NEVER = 2**62


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

    def __init__(self, name: str) -> None:
        self.name = name
        self.tally = Tally()
        self.table = EntryTable()
        self.passing_object: set[Hashable] = set()  # keys by class, of calls with objects that do not come again
        self.opened: set[type] = set()  # classes of objects that count as what they hold: another one came in each call
        self.last: Recording | None = None
        self.warm: CallFunction = no_recording
        self.device: torch.device | None = None  # the default device under which the last recording was called
        self.warm_calls = 0
        self.due = _NEVER  # warm calls until the next look at whether the last recording is to be audited

    # --- the last recording ---------------------------------------------------------------------------------

    def use(self, recording: Recording | None) -> None:
        """Have the next call try this recording first; with None, each call comes to the gate."""
        self.settle()
        self.device = default_device()
        self.last = recording
        self.warm = recording.call if recording is not None else no_recording
        is_audited = recording is not None and recording.audit is not None and settings.audit
        self.due = recording.audit.due - recording.calls if is_audited else _NEVER  # type: ignore[union-attr]

    def settle(self) -> None:
        """Credit warm calls to the recording that served them."""
        if self.last is not None:
            self.last.calls += self.warm_calls
        self.tally.went += self.warm_calls
        self.warm_calls = 0

    def served(self, recording: Recording) -> None:
        """Count a call that went to a recording, which the next one tries first."""
        recording.calls += 1
        self.tally.went += 1
        self.use(recording)

    # --- keys -----------------------------------------------------------------------------------------------

    def find(self, call: Call) -> tuple[Key, Entry]:
        """The key of a call, and its entry, which may be new. Raises `Refusal` for arguments that have no key."""
        key = make_key(call)
        if self.passing_object and (kind := kind_of(key)) is not None and kind in self.passing_object:
            key = kind
        return key, self.table.entry(key, lambda: describe(call))

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
        self.table.forget([key, *once])
        return True

    def look_around(self, entry: Entry, key: Key, call: Call) -> None:
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

    def comes_once(self, entry: Entry, key: Key) -> bool:
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
            if not entry.recordings and entry.phase is KeyPhase.RECORDED:
                entry.phase = KeyPhase.NEW
        if recording is self.last:
            self.use(None)
        self.table.free([recording])

    def let_go(self, entry: Entry, call: Call) -> None:
        """Drop recordings whose guards alone keep something alive that the program would find to be gone."""

        def why(recording: Recording) -> str:
            found = nearest_mismatches([recording.signature], call) if recording in entry.recordings else ()
            return "; ".join(map(str, found))

        if self.last in self.table.let_go(why):
            self.use(None)

    def evict(self) -> None:
        """Drop the least recently used where there are too many."""
        most = settings.max_recordings_per_program
        calls = [entry.arguments for entry in self.table]
        dropped = self.table.evict(most)
        if not dropped:
            return
        self.tally.dropped += len(dropped)
        if any(self.last in entry.recordings for entry in dropped):
            self.use(None)
        warn_once(
            f"treeplay keeps {most} recordings of {self.name} and drops the least recently used: what varies from call to "
            f"call is {varying(calls)}. Keep it constant (pad shapes, pass numbers as tensors), or raise "
            "treeplay.settings.max_recordings_per_program."
        )

    def reset(self) -> None:
        """Forget every recording and every refusal."""
        self.passing_object.clear()
        self.opened.clear()
        self.table.clear()
        self.use(None)

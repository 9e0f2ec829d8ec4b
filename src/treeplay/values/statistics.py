"""A snapshot of what a jitted program has done: plain values, for tests, reports and the command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from treeplay.values.launch import LaunchFacts
from treeplay.values.mismatch import Mismatch


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """One recording. `replays`: calls that launched it; `not_replayed`: calls that went to it and launched nothing, by what
    they were (warm-ups of a GPU, and where it could not be captured or launched)."""

    kind: str
    lowering: str
    plan: str
    operators: int
    tensors: int
    numbers: int
    written: int
    slots: int
    outputs: int
    scratch_bytes: int
    replays: int
    seconds: dict[str, float] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()  # lowerings that were tried first, and why they could not take the graph
    backward: str | None = None  # of a differentiable program: whether it was compiled, and what it gives
    launch: LaunchFacts = field(default_factory=lambda: LaunchFacts("cpu", "bound"))
    guards: str = ""  # how many of which kind
    guarded: tuple[str, ...] = ()  # what the recording depends on, by place, with what it was when it was recorded
    effects: tuple[str, ...] = ()  # what the program printed, logged and wrote, which no replay does: what, and where
    tier: str = ""  # whether what Inductor compiles in the background is awaited, on trial, or faster
    worth: str = ""  # what it takes, and what the program as it is does, once that was timed
    audits: int = 0  # how often it was compared with a new trace
    not_replayed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """One key of a program: its arguments, where it stands, and its recordings.

    `differs`: what kept its first call from the nearest recording of another key. `not_replayed`: calls that launched nothing,
    by what they were. `rerecorded`: how often a call found no recording of this key that fits, which is allowed
    `settings.max_rerecordings` times.
    """

    arguments: str
    phase: str
    eager_calls: int
    recordings: tuple[RecordingFacts, ...]
    refusal: str | None
    rerecorded_because: tuple[str, ...]
    errors: tuple[str, ...] = ()  # of treeplay's own, with their tracebacks
    differs: tuple[Mismatch, ...] = ()
    not_replayed: dict[str, int] = field(default_factory=dict)
    rerecorded: int = 0


@dataclass(frozen=True, slots=True)
class Statistics:
    """All of a program. `calls == replays + sum(not_replayed.values())`.

    `replays`: calls that launched a recording, those among them whose values did not pass a check and that the program itself
    answered. `eager_calls`: calls that ran the program itself. `not_replayed`: all calls but
    the replays, by what they were; besides the eager ones these are warm-ups and the like of recordings on a GPU, and calls
    that raised.
    """

    program: str
    calls: int
    replays: int
    eager_calls: int
    recordings: int
    refusals: int
    dropped: int
    keys: tuple[KeyFacts, ...]
    not_replayed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_none(cls, program: str) -> Statistics:
        """Those of a program of which no call was counted."""
        return cls(program, calls=0, replays=0, eager_calls=0, recordings=0, refusals=0, dropped=0, keys=())

    @property
    def captures(self) -> int:
        """How often a device captured what it launches, over the recordings that are kept."""
        return sum(launch.captures for launch in self._launches())

    @property
    def evictions(self) -> int:
        """How often such a capture was let go to make room."""
        return sum(launch.evictions for launch in self._launches())

    @property
    def moves(self) -> int:
        """How often state was followed to another address."""
        return sum(launch.patched for launch in self._launches())

    @property
    def copied_bytes(self) -> int:
        """What launches copied."""
        return sum(launch.copied_bytes for launch in self._launches())

    def _launches(self) -> Iterator[LaunchFacts]:
        return (recording.launch for key in self.keys for recording in key.recordings)

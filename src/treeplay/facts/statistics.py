"""A snapshot of what a jitted program has done: plain values, for tests, reports and the command."""

from __future__ import annotations

from dataclasses import dataclass, field

from treeplay.facts.launch import LaunchFacts


@dataclass(frozen=True, slots=True)
class RecordingFacts:
    """One recording."""

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
    audits: int = 0  # how often it was compared with a new trace


@dataclass(frozen=True, slots=True)
class KeyFacts:
    """One key of a program: its arguments, where it stands, and its recordings."""

    arguments: str
    phase: str
    eager_calls: int
    recordings: tuple[RecordingFacts, ...]
    refusal: str | None
    rerecorded_because: tuple[str, ...]
    errors: tuple[str, ...] = ()  # of treeplay's own, with their tracebacks


@dataclass(frozen=True, slots=True)
class Statistics:
    """All of a program. Every call was eager or a replay: `calls == eager_calls + replays`."""

    program: str
    calls: int
    replays: int
    eager_calls: int
    recordings: int
    refusals: int
    dropped: int
    keys: tuple[KeyFacts, ...]

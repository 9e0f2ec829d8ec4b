"""A program's statistics as text a person reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from treeplay.values.launch import LaunchFacts
from treeplay.values.statistics import KeyFacts, RecordingFacts, Statistics

_MOST_LISTED = 5
_MOST_GUARDED = 40


def explanation(statistics: Statistics, *, is_on: bool = True) -> str:
    """The whole account of a program: a head line, then each key with its recordings and reasons. `is_on`: whether it is not
    switched off."""
    head = (
        f"{statistics.program}: {calls_told(statistics)}; "
        f"{statistics.recordings} recordings, {statistics.refusals} refusals, {statistics.dropped} dropped"
    )
    keys = (line for key in statistics.keys for line in _key(key))
    off = [] if is_on else ["switched off (TREEPLAY=0 or settings.enabled): calls run as they are and are not counted"]
    return "\n".join([head, *off, *_outside(statistics), *keys])


def calls_told(statistics: Statistics) -> str:
    """All calls, as the sum of what they were."""
    kinds = [f"{statistics.replays} replayed", *counted(statistics.not_replayed)]
    return f"{statistics.calls} calls = {' + '.join(kinds)}"


def counted(calls: Mapping[str, int]) -> list[str]:
    """Calls by what they were, as text."""
    return [f"{count} {what}" for what, count in calls.items()]


def _outside(statistics: Statistics) -> list[str]:
    """Why calls came to no key."""
    inside = {what for key in statistics.keys for what in key.not_replayed}
    modes = [what for what in statistics.not_replayed if what.startswith("under ") and what not in inside]
    return [
        f"└─ {what}: runs as it is, since what is around the call wants to see the program's own operators; call it outside of "
        "that to have it replayed"
        for what in modes
    ]


def _key(key: KeyFacts) -> list[str]:
    lines = [f"└─ {key.arguments}: {', '.join([key.phase, *counted(key.not_replayed)])}"]
    lines += [f"   ├─ unlike the nearest that was recorded: {mismatch}" for mismatch in key.differs]
    for recording in key.recordings:
        lines += [f"   ├─ {line}" for line in describe(recording)]
    lines += [f"   ├─ recorded anew: {cause}" for cause in key.rerecorded_because]
    lines += [f"   │  {line}" for error in key.errors for line in error.splitlines()]
    if key.refusal is not None:
        lines += [f"   │  {line}" for line in key.refusal.splitlines()]
    return lines


def _launch(launch: LaunchFacts) -> list[str]:
    """How a GPU launches it: nothing for the host, where the recording is the compiled program itself."""
    if launch.stage == "bound":
        return []
    if launch.stage != "recorded":
        return [f"  on {launch.device}: {launch.stage}" + (f": {launch.why}" if launch.why else "") + _captures(launch)]
    kinds = Counter(policy.partition(" (")[0].partition(":")[0] for policy in launch.policy.values())
    copied = [f"  {name} is {policy}" for name, policy in launch.policy.items() if policy.startswith("copied")]
    return [
        f"  on {launch.device}: one launch of {launch.nodes} nodes; "
        + "".join(f"{count} {kind}; " for kind, count in sorted(kinds.items()))
        + f"{launch.copied_bytes_per_call:,} bytes copied per call, {launch.copied_bytes:,} so far; "
        + f"{launch.patched} moves of pinned tensors; {launch.exec_bytes:,} bytes of graph{_captures(launch)}",
        *([f"  {launch.why}"] if launch.why else []),
        *copied[:_MOST_LISTED],
        *([f"  and {len(copied) - _MOST_LISTED} more"] if len(copied) > _MOST_LISTED else []),
    ]


def _captures(launch: LaunchFacts) -> str:
    """How often it was captured and let go, where that was more than once."""
    captured = f"; captured {launch.captures} times" if launch.captures > 1 else ""
    return captured + (f"; let go {launch.evictions} times to make room" if launch.evictions else "")


def _guards(recording: RecordingFacts) -> list[str]:
    """What the recording depends on: first what a user sets."""
    if not recording.guards:
        return []
    listed = recording.guarded[:_MOST_GUARDED]
    left = len(recording.guarded) - len(listed)
    return [
        f"  guards: {recording.guards}",
        *(f"    {line}" for line in listed),
        *([f"    and {left} more values"] if left else []),
    ]


def describe(recording: RecordingFacts) -> list[str]:
    """One recording on a few lines."""
    total = sum(recording.seconds.values())
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in recording.seconds.items() if seconds >= 0.005)
    return [
        f"{recording.kind}, {recording.lowering} ({recording.plan}), "
        + ", ".join([f"{recording.replays} replays", *counted(recording.not_replayed)]),
        f"  {recording.tensors} tensors and {recording.numbers} numbers in, {recording.outputs} out, "
        f"{recording.written} written in place, {recording.slots} slots; {recording.operators} operators, "
        f"{recording.scratch_bytes} bytes of scratch held",
        *([f"  backward: {recording.backward}"] if recording.backward is not None else []),
        *_launch(recording.launch),
        f"  recorded in {total:.2f} s ({stages})" + (f", audited {recording.audits} times" if recording.audits else ""),
        *_guards(recording),
        *(f"  passed over {problem.splitlines()[0]}" for problem in recording.passed_over),
    ]

"""A program's statistics as text a person reads."""

from __future__ import annotations

from collections import Counter

from treeplay.facts.launch import LaunchFacts
from treeplay.facts.statistics import KeyFacts, RecordingFacts, Statistics

_MOST_LISTED = 5
_MOST_GUARDED = 40


def explanation(statistics: Statistics) -> str:
    """The whole account of a program: a head line, then each key with its recordings and reasons."""
    head = (
        f"{statistics.program}: {statistics.calls} calls = {statistics.replays} replayed + {statistics.eager_calls} eager; "
        f"{statistics.recordings} recordings, {statistics.refusals} refusals, {statistics.dropped} dropped"
    )
    return "\n".join([head, *(line for key in statistics.keys for line in _key(key))])


def _key(key: KeyFacts) -> list[str]:
    lines = [f"└─ {key.arguments}: {key.phase}, {key.eager_calls} eager"]
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
        return [f"  on {launch.device}: {launch.stage}" + (f": {launch.why}" if launch.why else "")]
    kinds = Counter(policy.partition(" (")[0].partition(":")[0] for policy in launch.policy.values())
    copied = [f"  {name} is {policy}" for name, policy in launch.policy.items() if policy.startswith("copied")]
    return [
        f"  on {launch.device}: one launch of {launch.nodes} nodes; "
        + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        + f"; {launch.copied_bytes_per_call:,} bytes copied per call, {launch.patched} moves of pinned tensors; "
        + f"{launch.exec_bytes:,} bytes of graph",
        *([f"  {launch.why}"] if launch.why else []),
        *copied[:_MOST_LISTED],
        *([f"  and {len(copied) - _MOST_LISTED} more"] if len(copied) > _MOST_LISTED else []),
    ]


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
        f"{recording.kind}, {recording.lowering} ({recording.plan}), {recording.replays} replays",
        f"  {recording.tensors} tensors and {recording.numbers} numbers in, {recording.outputs} out, "
        f"{recording.written} written in place, {recording.slots} slots; {recording.operators} operators, "
        f"{recording.scratch_bytes} bytes of scratch held",
        *([f"  backward: {recording.backward}"] if recording.backward is not None else []),
        *_launch(recording.launch),
        f"  recorded in {total:.2f} s ({stages})" + (f", audited {recording.audits} times" if recording.audits else ""),
        *_guards(recording),
        *(f"  passed over {problem.splitlines()[0]}" for problem in recording.passed_over),
    ]

"""A program's statistics as text a person reads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from treeplay.values.launch import LaunchFacts
from treeplay.values.statistics import KeyFacts, RecordingFacts, Statistics

_MOST_LISTED = 5
_MOST_GUARDED = 40
_MOST_ASSUMED = 8
_OBSERVED = "observed"
_BEFORE_REPLAYS = (_OBSERVED, "warm-up", "another thread records", "too early to record")
# Guarded like the rest, and nothing that a user sets.
_TORCHS = re.compile(
    r"^(logger |logging\.|torch\.|(Module|Optimizer|LRScheduler)\.|[A-Z]\w*\.step\.hooked)"
    r"|\.defaults\[|_profile_name|_compiled_call_impl|\['(foreach|capturable|differentiable|fused|decoupled_weight_decay)'\]"
)
_OF_TORCH = 2


def explanation(statistics: Statistics, *, is_on: bool = True) -> str:
    """The whole account of a program: what it comes to, then each key with its recordings and reasons. `is_on`: whether it is
    not switched off."""
    counts = (
        f"  {calls_told(statistics)}; "
        f"{statistics.recordings} recordings, {statistics.refusals} refusals, {statistics.dropped} dropped"
    )
    keys = (line for key in statistics.keys for line in _key(key))
    head = [_verdict(statistics, is_on=is_on), counts, *_spent(statistics), *_assumed(statistics)]
    return "\n".join([*head, *_outside(statistics), *keys])


def _verdict(statistics: Statistics, *, is_on: bool) -> str:
    """Whether the program is replayed, and if not, why."""
    name, refused = statistics.program, [key.refusal for key in statistics.keys if key.refusal is not None]
    if not is_on:
        return f"{name} is switched off (TREEPLAY=0 or settings.enabled): calls run as they are and are not counted"
    launches = [recording.launch for key in statistics.keys for recording in key.recordings]
    if launches:
        kinds = _not_replayed(statistics)
        if launches[-1].stage == "not recorded":
            return f"{name} is compiled, and not recorded: {launches[-1].why}{kinds}"
        return f"{name} is {'replayed' if statistics.replays else 'recorded, and not replayed yet'}{kinds}"
    if refused:
        return f"{name} is not replayed: {refused[-1].splitlines()[0]}"
    if not statistics.calls:
        return f"{name} has not been called"
    most = max(statistics.not_replayed, key=statistics.not_replayed.__getitem__, default=_OBSERVED)
    if most in _BEFORE_REPLAYS:
        return f"{name} is not replayed yet: the second call with the same kind of arguments is recorded"
    return f"{name} is not replayed: {statistics.not_replayed[most]} of {statistics.calls} calls were {most}"


def _not_replayed(statistics: Statistics) -> str:
    """Which calls of a program that has recordings are refused: of whole kinds, or those that no recording of theirs fits."""
    refused = [key for key in statistics.keys if key.refusal is not None]
    whole = [key for key in refused if not key.recordings]
    told = [f"; calls with {len(whole)} of {len(statistics.keys)} kinds of arguments are not"] if whole else []
    told += [
        f"; calls that none of {counted_as(len(key.recordings), 'recording')} fits are not: {key.refusal.splitlines()[0]}"
        for key in refused
        if key.recordings and key.refusal is not None
    ][-1:]
    return "".join(told)


def _spent(statistics: Statistics) -> list[str]:
    """What the recordings that there are took to make."""
    made = [recording for key in statistics.keys for recording in key.recordings]
    seconds = sum(sum(recording.seconds.values()) for recording in made)
    return [f"  {seconds:.2f} s went into tracing and compiling {counted_as(len(made), 'recording')}"] if made else []


def _assumed(statistics: Statistics) -> list[str]:
    """What the newest recording takes for constant, and what its program did that no replay does."""
    newest = next((key.recordings[-1] for key in reversed(statistics.keys) if key.recordings), None)
    if newest is None:
        return []
    own = [line for line in sorted(newest.guarded, key=_rank) if _rank(line) < _OF_TORCH]
    left = len(newest.guarded) - len(own[:_MOST_ASSUMED])
    return [
        *(["  taken for constant (a change makes a new recording):"] if newest.guarded else []),
        *(f"    {line}" for line in own[:_MOST_ASSUMED]),
        *(
            [f"    {'and ' if own else ''}{left} {'more' if own else 'settings of torch'}, listed below"]
            if left
            else []
        ),
        *(f"  done in Python, and by no replay: {line}" for line in newest.effects),
    ]


def _rank(line: str) -> int:
    """How late a guarded value is listed: the environment has many variables, of which most programs set none."""
    return _OF_TORCH if _TORCHS.search(line) else 1 if line.startswith("environ.") else 0


def counted_as(count: int, what: str) -> str:
    """A number of things in words."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def calls_told(statistics: Statistics) -> str:
    """All calls, as the sum of what they were."""
    kinds = [f"{statistics.replays} replayed", *lines_of_calls(statistics.not_replayed)]
    return f"{statistics.calls} calls = {' + '.join(kinds)}"


def lines_of_calls(calls: Mapping[str, int]) -> list[str]:
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
    lines = [f"└─ {key.arguments}: {', '.join([key.phase, *lines_of_calls(key.not_replayed)])}"]
    lines += [f"   ├─ unlike the nearest that was recorded: {mismatch}" for mismatch in key.differs]
    for recording in key.recordings:
        lines += [f"   ├─ {line}" for line in recording_text(recording)]
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
    listed = sorted(recording.guarded, key=_rank)[:_MOST_GUARDED]
    left = len(recording.guarded) - len(listed)
    return [
        f"  guards: {recording.guards}",
        *(f"    {line}" for line in listed),
        *([f"    and {left} more values"] if left else []),
    ]


def recording_text(recording: RecordingFacts) -> list[str]:
    """One recording on a few lines."""
    total = sum(recording.seconds.values())
    stages = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in recording.seconds.items() if seconds >= 0.005)
    return [
        f"{recording.kind}, {recording.lowering} ({recording.plan}), "
        + ", ".join([f"{recording.replays} replays", *lines_of_calls(recording.not_replayed)]),
        f"  {recording.tensors} tensors and {recording.numbers} numbers in, {recording.outputs} out, "
        f"{recording.written} written in place, {recording.slots} slots; {recording.operators} operators, "
        f"{recording.scratch_bytes} bytes of scratch held",
        *([f"  backward: {recording.backward}"] if recording.backward is not None else []),
        *_launch(recording.launch),
        *(f"  {told}" for told in (recording.tier, recording.worth) if told),
        f"  recorded in {total:.2f} s ({stages})" + (f", audited {recording.audits} times" if recording.audits else ""),
        *_guards(recording),
        *(f"  passed over {problem.splitlines()[0]}" for problem in recording.passed_over),
    ]

"""A program's statistics as a rich tree: its keys, and under each its recordings and what happened to it."""

from __future__ import annotations

import re
from collections import Counter

from rich.markup import escape
from rich.tree import Tree

from treeplay.report.text import calls_told, counted
from treeplay.values.launch import LaunchFacts
from treeplay.values.statistics import KeyFacts, RecordingFacts, Statistics


def recordings_tree(statistics: Statistics) -> Tree:
    """The whole account of a program."""
    tree = Tree(f"[bold]{escape(statistics.program)}[/bold]: {escape(calls_told(statistics))}")
    for key in statistics.keys:
        _add_key(tree, key)
    return tree


def _add_key(tree: Tree, key: KeyFacts) -> None:
    branch = tree.add(f"{escape(key.arguments)}: {', '.join([key.phase, *counted(key.not_replayed)])}")
    for recording in key.recordings:
        _add_recording(branch, recording)
    for cause in key.rerecorded_because:
        branch.add(f"recorded anew: {escape(cause)}")
    if key.refusal is not None:
        branch.add(f"[red]{escape(key.refusal)}[/red]")


def _add_recording(branch: Tree, recording: RecordingFacts) -> None:
    calls = ", ".join([f"{recording.replays} replays", *counted(recording.not_replayed)])
    leaf = branch.add(f"{recording.kind}, {recording.lowering}, {calls}")
    leaf.add(f"{recording.tensors} tensors and {recording.numbers} numbers in, {recording.outputs} tensors out")
    leaf.add(f"{recording.written} tensors written in place, {recording.slots} slots")
    leaf.add(f"{recording.operators} operators, {recording.scratch_bytes:,} bytes of scratch")
    if recording.backward is not None:
        leaf.add(f"backward: {recording.backward}")
    if recording.launch.stage != "bound":
        leaf.add(launched(recording.launch))
    leaf.add(recorded_in(recording))


def launched(launch: LaunchFacts) -> str:
    """How a graph is launched: its size, how it finds its tensors, and what it copies."""
    if launch.stage != "recorded":
        return f"{launch.device}: {launch.stage}" + (f": {escape(launch.why)}" if launch.why else "")
    policies = Counter(re.split(r"\W", policy, maxsplit=1)[0] for policy in launch.policy.values())
    found = ", ".join(f"{policies[name]} {name}" for name in ("pinned", "patched", "copied") if policies[name])
    nodes = f"{launch.device}: {launch.nodes} graph nodes"
    return f"{nodes}; tensors {found or 'none'}; {launch.copied_bytes_per_call:,} bytes copied per call"


def recorded_in(recording: RecordingFacts) -> str:
    """How long the recording took, and its stages that can be felt."""
    stages = [f"{stage} {seconds:.2f}" for stage, seconds in recording.seconds.items() if seconds >= 0.005]
    return f"recorded in {sum(recording.seconds.values()):.2f} s ({', '.join(stages) or 'no stage took 5 ms'})"

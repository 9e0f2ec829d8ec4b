"""Statistics as text that people read."""

from __future__ import annotations

import dataclasses

import pytest

from treeplay.report.text import explanation
from treeplay.values.launch import LaunchFacts
from treeplay.values.statistics import KeyFacts, RecordingFacts, Statistics

RECORDING = RecordingFacts(
    kind="whole step",
    lowering="aten",
    plan="aten: asked for",
    operators=52,
    tensors=24,
    numbers=2,
    written=22,
    slots=8,
    outputs=9,
    scratch_bytes=1_016_196,
    replays=7,
    seconds={"trace": 0.125, "lower": 1.0, "wrap": 0.0001},
)


def shown(*keys: KeyFacts) -> list[str]:
    """The lines about a program with these keys."""
    return explanation(Statistics("step", 8, 7, 1, 1, 0, 0, keys, {"observed": 1})).splitlines()


def test_a_recording_tells_what_it_takes_and_how_long_it_took() -> None:
    head, key, *lines = shown(KeyFacts("args[0]=float32[4]", "recorded", 1, (RECORDING,), None, ()))
    assert head.startswith("step: 8 calls = 7 replayed + 1 observed; 1 recordings")
    assert key == "└─ args[0]=float32[4]: recorded"
    assert lines[0] == "   ├─ whole step, aten (aten: asked for), 7 replays"
    assert lines[-1].endswith("recorded in 1.13 s (trace 0.12, lower 1.00)")


def test_refusals_and_new_recordings_give_their_reason() -> None:
    text = shown(KeyFacts("[x]", "refused", 2, (), "item: [reads] a value", ("p: another address",)))
    assert text[1:] == ["└─ [x]: refused", "   ├─ recorded anew: p: another address", "   │  item: [reads] a value"]


@pytest.mark.parametrize(
    ("launch", "line"),
    [
        (
            LaunchFacts("cuda:0", "recorded", nodes=45, policy={"a": "pinned (2 sites)", "b": "patched (1 sites)"}),
            "on cuda:0: one launch of 45 nodes; 1 patched; 1 pinned; 0 bytes copied per call",
        ),
        (
            LaunchFacts("cuda:0", "recorded", nodes=1, policy={"a": "copied: [x]"}, copied_bytes_per_call=4096),
            "on cuda:0: one launch of 1 nodes; 1 copied; 4,096 bytes copied per call",
        ),
        (LaunchFacts("cuda:0", "warming"), "on cuda:0: warming"),
        (LaunchFacts("cuda:0", "not recorded", why="item: reads"), "on cuda:0: not recorded: item: reads"),
    ],
)
def test_a_graph_tells_how_it_finds_its_tensors(launch: LaunchFacts, line: str) -> None:
    recording = dataclasses.replace(RECORDING, launch=launch)
    lines = shown(KeyFacts("args[0]=float32[4]", "recorded", 1, (recording,), None, ()))
    assert any(line in found for found in lines), lines

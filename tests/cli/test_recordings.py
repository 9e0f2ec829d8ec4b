"""Statistics as a tree that people read."""

from __future__ import annotations

import dataclasses

import pytest
from rich.console import Console

from treeplay.cli.recordings import recordings_tree
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


def shown(*keys: KeyFacts) -> str:
    """The tree of a program with these keys, as text."""
    statistics = Statistics("step", 8, 7, 1, 1, 0, 0, keys, {"observed": 1})
    console = Console(width=120, no_color=True)
    with console.capture() as capture:
        console.print(recordings_tree(statistics))
    return capture.get()


def test_a_recording_tells_what_it_takes_and_how_long_it_took() -> None:
    assert shown(KeyFacts("args[0]=float32[4]", "recorded", 1, (RECORDING,), None, ())) == (
        "step: 8 calls = 7 replayed + 1 observed\n"
        "└── args[0]=float32[4]: recorded\n"
        "    └── whole step, aten, 7 replays\n"
        "        ├── 24 tensors and 2 numbers in, 9 tensors out\n"
        "        ├── 22 tensors written in place, 8 slots\n"
        "        ├── 52 operators, 1,016,196 bytes of scratch\n"
        "        └── recorded in 1.13 s (trace 0.12, lower 1.00)\n"
    )


def test_refusals_and_new_recordings_give_their_reason() -> None:
    text = shown(KeyFacts("[x]", "refused", 2, (), "item: [reads] a value", ("p: another address",)))
    assert "[x]: refused" in text
    assert "recorded anew: p: another address" in text
    assert "item: [reads] a value" in text


@pytest.mark.parametrize(
    ("launch", "line"),
    [
        (
            LaunchFacts(
                "cuda:0",
                "recorded",
                nodes=45,
                policy={"a": "pinned (2 sites)", "b": "patched (1 sites)", "c": "pinned"},
            ),
            "cuda:0: 45 graph nodes; tensors 2 pinned, 1 patched; 0 bytes copied per call",
        ),
        (
            LaunchFacts("cuda:0", "recorded", nodes=1, policy={"a": "copied: [x]"}, copied_bytes_per_call=4096),
            "cuda:0: 1 graph nodes; tensors 1 copied; 4,096 bytes copied per call",
        ),
        (LaunchFacts("cuda:0", "warming"), "cuda:0: warming"),
        (LaunchFacts("cuda:0", "not recorded", why="item: [reads] a value"), "not recorded: item: [reads] a value"),
    ],
)
def test_a_graph_tells_how_it_finds_its_tensors(launch: LaunchFacts, line: str) -> None:
    recording = dataclasses.replace(RECORDING, launch=launch)
    assert line in shown(KeyFacts("args[0]=float32[4]", "recorded", 1, (recording,), None, ()))

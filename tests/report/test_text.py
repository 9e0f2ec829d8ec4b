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
    return _explained(*keys)[1:]


def _explained(*keys: KeyFacts, replays: int = 7, is_on: bool = True) -> list[str]:
    statistics = Statistics("step", replays + 1, replays, 1, 1, 0, 0, keys, {"observed": 1})
    return explanation(statistics, is_on=is_on).splitlines()


def _key(*recordings: RecordingFacts, refusal: str | None = None) -> KeyFacts:
    return KeyFacts("args[0]=float32[4]", "recorded", 1, recordings, refusal, ())


def test_it_begins_with_whether_the_program_is_replayed_what_that_took_and_what_it_assumes() -> None:
    guarded = ("logger root.level = 30", "model.p = 0.5", "__main__.SCALE = 2.0", "opt.defaults['lr'] = 0.1")
    recording = dataclasses.replace(RECORDING, guarded=guarded, effects=("print at train.py:3 in step",))
    assert _explained(_key(recording))[:8] == [
        "step is replayed",
        "  8 calls = 7 replayed + 1 observed; 1 recordings, 0 refusals, 0 dropped",
        "  1.13 s went into tracing and compiling 1 recording",
        "  taken for constant (a change makes a new recording):",
        "    model.p = 0.5",
        "    __main__.SCALE = 2.0",
        "    and 2 more, listed below",
        "  done in Python, and by no replay: print at train.py:3 in step",
    ]


def test_a_program_that_is_not_replayed_says_why_first() -> None:
    given_up = dataclasses.replace(
        RECORDING, replays=0, launch=LaunchFacts("cuda:0", "not recorded", why="out of memory")
    )
    refused = _key(refusal="item: reads a value\n  at      train.py:3")
    verdicts = {
        "step is not replayed: item: reads a value": _explained(refused, replays=0),
        "step is compiled, and not recorded: out of memory": _explained(_key(given_up), replays=0),
        "step is recorded, and not replayed yet": _explained(_key(RECORDING), replays=0),
        "step is replayed; calls with 1 of 2 kinds of arguments are not": _explained(_key(RECORDING), refused),
        "step is replayed; calls that none of 2 recordings fits are not: state: recorded anew 8 times": _explained(
            _key(RECORDING, RECORDING, refusal="state: recorded anew 8 times\n  at      train.py:3")
        ),
        "step is not replayed yet: the second call with the same kind of arguments is recorded": _explained(replays=0),
        "step is switched off (TREEPLAY=0 or settings.enabled): calls run as they are and are not counted": _explained(
            _key(RECORDING), is_on=False
        ),
    }
    assert list(verdicts) == [lines[0] for lines in verdicts.values()]
    assert explanation(Statistics.of_none("step")).splitlines()[0] == "step has not been called"
    told = Statistics("step", 9, 0, 9, 0, 0, 0, (), {"observed": 3, "new, and over the compile budget": 6})
    assert explanation(told).startswith("step is not replayed: 6 of 9 calls were new, and over the compile budget\n")


def test_a_recording_tells_what_it_takes_and_how_long_it_took() -> None:
    head, _, key, *lines = shown(KeyFacts("args[0]=float32[4]", "recorded", 1, (RECORDING,), None, ()))
    assert head.startswith("  8 calls = 7 replayed + 1 observed; 1 recordings")
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

"""Results of several runs become one file."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.backend.merge import merged


def run(date: str, *models: dict[str, Any], torch: str = "2.13") -> dict[str, Any]:
    return {"environment": {"date": date, "torch": torch, "device": "cpu"}, "options": [date], "models": list(models)}


def test_later_ways_replace_earlier_ones_and_the_others_stay() -> None:
    first = run(
        "1", {"model": "gru", "done": True}, {"model": "bert", "training": {"eager": 1, "jit": 2}, "died": "cut"}
    )
    second = run("2", {"model": "bert", "training": {"jit": 3}, "inference": {"jit": 4}, "done": True})
    found = merged([first, second])
    assert [result["model"] for result in found["models"]] == ["bert", "gru"]
    assert found["models"][0]["training"] == {"eager": 1, "jit": 3} and found["models"][0]["inference"] == {"jit": 4}
    assert [each["date"] for each in found["runs"]] == ["1", "2"]
    assert [each["date"] for each in merged([found, run("3")])["runs"]] == ["1", "2", "3"]


def test_runs_of_other_torches_are_not_mixed() -> None:
    with pytest.raises(ValueError, match=r"differ in torch: \['2.13', '2.11'\]"):
        merged([run("1"), run("2", torch="2.11")])

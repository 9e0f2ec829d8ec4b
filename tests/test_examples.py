"""The examples that need only torch run, agree with eager, and are replayed."""

from __future__ import annotations

import pytest

from support.examples import FOLDER, run_example

pytestmark = pytest.mark.programs
NOT_REPLAYED = {"ppo": 2, "sac": 1, "averages": 1, "arrays": 2, "lengths": 2, "decoding": 1}
"""How many calls of each run eagerly: the first of each kind."""


@pytest.mark.parametrize("name", NOT_REPLAYED)
def test_an_example_is_replayed(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    replayed, calls = run_example(name, capsys, monkeypatch)
    assert calls - replayed == NOT_REPLAYED[name]


def test_each_example_is_run() -> None:
    from models.test_examples import PACKAGES

    others = {"inference", "train_step"}  # which measure, and are compiled
    assert {file.stem for file in FOLDER.glob("*.py")} == {*NOT_REPLAYED, *PACKAGES, *others}

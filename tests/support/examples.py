"""Runs a program of `examples/` as a user would, but without a compiler, which most of its time would go to."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "examples"


def run_example(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """How many calls it says were replayed, of how many; it asserts by itself that results are eager's."""
    import treeplay

    monkeypatch.setenv("CXX", "none")
    # Where a step imports, what looks for modules is a part of it: pytest's holds the test itself, and its generators.
    finders = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_pytest")]
    monkeypatch.setattr(sys, "meta_path", finders)
    with treeplay.settings.changed(eager_random=False, compile_budget=0.1):
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    lines = re.findall(r"^replayed (\d+) of (\d+) calls$", capsys.readouterr().out, re.MULTILINE)
    assert len(lines) == 1
    replayed, calls = map(int, lines[0])
    return replayed, calls

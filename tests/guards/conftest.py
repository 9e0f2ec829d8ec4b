"""The gate tells each story with each value of each of its axes; their other combinations are marked `soak`."""

from __future__ import annotations

import zlib

import pytest


@pytest.fixture(autouse=True)
def _words_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every other story, words of memory are compared as soon as nothing has changed once. Stories have few calls."""
    is_story = request.path.stem.endswith("_stale") or request.path.stem == "test_world_changes"
    if is_story and zlib.crc32(request.node.nodeid.encode()) % 2:
        from treeplay.guards.check import quick, words

        words.background.compile()
        monkeypatch.setattr(quick, "_YOUNG", 1)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    told: set[tuple[str, int, str]] = set()
    for item in items:
        # One for each axis; pytest has no public name for them.
        ids = getattr(getattr(item, "callspec", None), "_idlist", ())
        if len(ids) < 2 or item.path.parent.name != "guards":
            continue
        story = item.nodeid.partition("[")[0]
        values = {(story, axis, value) for axis, value in enumerate(ids)}
        if values <= told:
            item.add_marker(pytest.mark.soak)
        told |= values

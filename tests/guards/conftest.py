"""The gate tells each story with each value of each of its axes; their other combinations are marked `soak`."""

from __future__ import annotations

import pytest


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    told: set[tuple[str, int, str]] = set()
    for item in items:
        ids = getattr(
            getattr(item, "callspec", None), "_idlist", ()
        )  # one for each axis; pytest has no public name for them
        if len(ids) < 2 or item.path.parent.name != "guards":
            continue
        story = item.nodeid.partition("[")[0]
        values = {(story, axis, value) for axis, value in enumerate(ids)}
        if values <= told:
            item.add_marker(pytest.mark.soak)
        told |= values

"""Each test finds a Dynamo that has compiled nothing."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _fresh_dynamo(fresh_dynamo: None) -> None:
    """In all of this folder."""

"""How long each stage of a recording took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from treeplay.observe import phase


@contextmanager
def timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    """Note in `seconds` how long a stage took, once it is over."""
    start = time.perf_counter()
    with phase(f"treeplay.{stage}"):
        yield
    seconds[stage] = time.perf_counter() - start

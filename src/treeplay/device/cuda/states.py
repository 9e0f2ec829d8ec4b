"""What has become of a piece of work on its way to a graph."""

from __future__ import annotations

from dataclasses import dataclass

from treeplay.device.cuda.captured import CapturedGraph


@dataclass(frozen=True, slots=True)
class Warming:
    """The work has not run."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The next call captures it."""


@dataclass(frozen=True, slots=True)
class Ready:
    """There is a graph, which the lane may have let go to make room."""

    graph: CapturedGraph


@dataclass(frozen=True, slots=True)
class GivenUp:
    """It cannot be captured."""

    why: str

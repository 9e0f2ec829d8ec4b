"""Snapshots of what one explicit recording holds and has done, and of what a graphed callable has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GraphStatistics:
    """Plain values; None where a device cannot tell, or where there is nothing recorded.

    `nodes`: how many of each kind (on a CPU: operators by name). `pool_bytes`: memory of the recording's pool, shared ones
    included. `exec_bytes`: device memory that the launchable form takes, measured. Seconds of a launch are the host's.
    """

    device: str
    phase: str
    nodes: Mapping[str, int] | None
    pool_bytes: int | None
    exec_bytes: int | None
    replays: int
    capture_seconds: float
    launch_seconds: float

    @property
    def node_count(self) -> int | None:
        """How many nodes or operators one replay runs."""
        return None if self.nodes is None else sum(self.nodes.values())

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in (self.nodes or {}).items())
        memory = "" if self.pool_bytes is None else f", {self.pool_bytes} bytes in its pool"
        launched = f" in {self.launch_seconds * 1e6:.0f} µs of the host" if self.replays else ""
        return (
            f"recording on {self.device}, {self.phase}: {self.node_count or 0} nodes ({kinds or 'none'}){memory}, "
            f"captured in {self.capture_seconds * 1e3:.1f} ms, {self.replays} replays{launched}"
        )


@dataclass(frozen=True, slots=True)
class CallableStatistics:
    """`recordings` were made and `kept` are there still; eager calls by reason."""

    label: str
    recordings: int
    kept: int
    replays: int
    copied_tensors: int
    eager_calls: int
    eager_because: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.label}: {self.recordings} recordings, {self.replays} replays, {self.copied_tensors} tensors copied in, "
            f"{self.eager_calls} eager calls"
        )

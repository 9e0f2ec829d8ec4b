"""What a replay takes, as the device that launches it sees it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    """How a recording is launched by now.

    `stage`: "bound" (host), or on a GPU "warming", "recorded", or "not recorded" with `why`. `policy` says of each tensor
    by name whether its address is pinned, patched into the launch when it moves, or its content copied, and why.

    So far, over all captures: `launches`, `captures`, `evictions` (the captured graph was let go to make room), `patched`
    (state that was followed to another address; arguments and results are followed without a count) and `copied_bytes`.
    A host that is "bound" captures nothing, and counts none of these.
    """

    device: str
    stage: str
    why: str | None = None
    nodes: int = 0
    scratch_bytes: int = 0
    exec_bytes: int = 0
    copied_bytes_per_call: int = 0
    launches: int = 0
    captures: int = 0
    evictions: int = 0
    patched: int = 0
    copied_bytes: int = 0
    policy: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

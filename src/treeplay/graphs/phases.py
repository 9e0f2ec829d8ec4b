"""The phases of a recording, and which call is legal in which.

EMPTY ── begin ──▶ CAPTURING ── end ──▶ READY ── replay ──▶ READY
  ▲                    │                  │
  │                    └── failure ──▶ FAILED
  └───────────────── reset ───────────────┴── (not while capturing)
"""

from __future__ import annotations

from enum import Enum

from treeplay.errors import UsageError


class Phase(Enum):
    """Where a recording stands."""

    EMPTY = "empty"
    CAPTURING = "capturing"
    READY = "ready"
    FAILED = "failed"


_LEGAL: dict[str, tuple[Phase, ...]] = {
    "capture_begin": (Phase.EMPTY,),
    "capture_end": (Phase.CAPTURING,),
    "register_generator_state": (Phase.EMPTY,),
    "enable_debug_mode": (Phase.EMPTY,),
    "instantiate": (Phase.READY,),
    "replay": (Phase.READY,),
    "pool": (Phase.READY,),
    "debug_dump": (Phase.READY,),
    "raw_cuda_graph": (Phase.READY,),
    "raw_cuda_graph_exec": (Phase.READY,),
    "reset": (Phase.EMPTY, Phase.READY, Phase.FAILED),
}
_ADVICE: dict[tuple[str, Phase], str] = {
    ("capture_begin", Phase.READY): "call reset() first, or record into another Graph",
    ("capture_begin", Phase.FAILED): "call reset() first, or record into another Graph",
    ("capture_begin", Phase.CAPTURING): "end the capture first; captures do not nest",
    ("reset", Phase.CAPTURING): "end the capture first",
}


def check_phase(phase: Phase, call: str) -> None:
    """`UsageError` if `call` is not legal in this phase; it names the phase found and those needed."""
    needed = _LEGAL[call]
    if phase in needed:
        return
    expected = " or ".join(item.value for item in needed)
    advice = _ADVICE.get((call, phase), "record something first" if Phase.READY in needed else "begin a capture first")
    raise UsageError(f"{call}() needs a recording that is {expected}, and this one is {phase.value}: {advice}")

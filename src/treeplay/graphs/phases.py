"""The phases of a recording, and which call is legal in which.

EMPTY ── begin ──▶ CAPTURING ── end ──▶ READY ── replay ──▶ READY
  ▲                    │                  │
  │                    └── failure ──▶ FAILED
  └───────────────── reset ───────────────┴── (not while capturing)
"""

from __future__ import annotations

from enum import Enum

from treeplay.errors import UsageError


class RecordingPhase(Enum):
    """Where a recording stands."""

    EMPTY = "empty"
    CAPTURING = "capturing"
    READY = "ready"
    FAILED = "failed"


_LEGAL: dict[str, tuple[RecordingPhase, ...]] = {
    "capture_begin": (RecordingPhase.EMPTY,),
    "capture_end": (RecordingPhase.CAPTURING,),
    "register_generator_state": (RecordingPhase.EMPTY,),
    "enable_debug_mode": (RecordingPhase.EMPTY,),
    "instantiate": (RecordingPhase.READY,),
    "replay": (RecordingPhase.READY,),
    "pool": (RecordingPhase.READY,),
    "debug_dump": (RecordingPhase.READY,),
    "raw_cuda_graph": (RecordingPhase.READY,),
    "raw_cuda_graph_exec": (RecordingPhase.READY,),
    "reset": (RecordingPhase.EMPTY, RecordingPhase.READY, RecordingPhase.FAILED),
}
_ADVICE: dict[tuple[str, RecordingPhase], str] = {
    ("capture_begin", RecordingPhase.READY): "call reset() first, or record into another Graph",
    ("capture_begin", RecordingPhase.FAILED): "call reset() first, or record into another Graph",
    ("capture_begin", RecordingPhase.CAPTURING): "end the capture first; captures do not nest",
    ("reset", RecordingPhase.CAPTURING): "end the capture first",
}


def check_phase(phase: RecordingPhase, call: str) -> None:
    """`UsageError` if `call` is not legal in this phase; it names the phase found and those needed."""
    needed = _LEGAL[call]
    if phase in needed:
        return
    expected = " or ".join(item.value for item in needed)
    advice = _ADVICE.get(
        (call, phase), "record something first" if RecordingPhase.READY in needed else "begin a capture first"
    )
    raise UsageError(f"{call}() needs a recording that is {expected}, and this one is {phase.value}: {advice}")

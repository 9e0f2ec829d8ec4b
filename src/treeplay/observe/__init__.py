"""Counting, timing, comparing and printing: what happened, how long it took, and whether it is right.

Everything here can be used at any time and from any thread, and costs next to nothing while nobody looks.
"""

from __future__ import annotations

from treeplay.observe.compare import same
from treeplay.observe.counters import Count, CounterGroup, Counters, counters
from treeplay.observe.internal import internal_errors, kept_errors
from treeplay.observe.leaf import UnsupportedLeafError
from treeplay.observe.once import times_said, warn_once
from treeplay.observe.records import DEFAULT_LIMIT, RecordRing, compile_records, records
from treeplay.observe.restore import checkpoint
from treeplay.observe.rng import RngState, TransformError, keep_rng, read_rng, write_rng
from treeplay.observe.timers import PhaseFailure, PhaseTimer, Timers, phase, report, timers
from treeplay.values.verdict import Elements, Float64Errors, LeafFailure, Verdict, Worst

__all__ = [
    "Count",
    "CounterGroup",
    "Counters",
    "Elements",
    "Float64Errors",
    "LeafFailure",
    "PhaseFailure",
    "PhaseTimer",
    "RecordRing",
    "RngState",
    "Timers",
    "TransformError",
    "UnsupportedLeafError",
    "Verdict",
    "Worst",
    "checkpoint",
    "compile_records",
    "counters",
    "internal_errors",
    "keep_rng",
    "phase",
    "read_rng",
    "records",
    "report",
    "reset",
    "same",
    "timers",
    "warn_once",
    "write_rng",
]


def reset() -> None:
    """Forget all counts, durations, records and what was said; take the ring's limit and sink back too."""
    for kept in (counters, timers, compile_records, kept_errors):
        kept.clear()
    times_said.cache_clear()
    compile_records.limit = DEFAULT_LIMIT
    compile_records.set_sink(None)

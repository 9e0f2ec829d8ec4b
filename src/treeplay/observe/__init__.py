"""Counting, timing, comparing and printing: what happened, how long it took, and whether it is right.

Everything here can be used at any time and from any thread, and costs next to nothing while nobody looks.
"""

from __future__ import annotations

from treeplay.observe.clone import clone, clone_all
from treeplay.observe.compare import same
from treeplay.observe.counters import Count, CounterGroup, Counters, counters
from treeplay.observe.internal import internal_errors
from treeplay.observe.leaf import UnsupportedLeafError
from treeplay.observe.once import print_once, warn_once
from treeplay.observe.printing import LazyText, code, tabular
from treeplay.observe.process import reset
from treeplay.observe.records import RecordRing, compile_records, records
from treeplay.observe.restore import checkpoint
from treeplay.observe.rng import RngState, TransformError, keep_rng, read_rng, write_rng
from treeplay.observe.timers import PhaseFailure, PhaseTimer, Timers, phase, report, timers
from treeplay.observe.timing import time_call
from treeplay.observe.weak import WeakIdDict
from treeplay.values.verdict import Elements, Float64Errors, LeafFailure, Verdict, Worst

__all__ = [
    "Count",
    "CounterGroup",
    "Counters",
    "Elements",
    "Float64Errors",
    "LazyText",
    "LeafFailure",
    "PhaseFailure",
    "PhaseTimer",
    "RecordRing",
    "RngState",
    "Timers",
    "TransformError",
    "UnsupportedLeafError",
    "Verdict",
    "WeakIdDict",
    "Worst",
    "checkpoint",
    "clone",
    "clone_all",
    "code",
    "compile_records",
    "counters",
    "internal_errors",
    "keep_rng",
    "phase",
    "print_once",
    "read_rng",
    "records",
    "report",
    "reset",
    "same",
    "tabular",
    "time_call",
    "timers",
    "warn_once",
    "write_rng",
]

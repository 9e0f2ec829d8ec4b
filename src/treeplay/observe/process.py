"""All that this package keeps for the whole process: what to reset in a test and to renew after a fork."""

from __future__ import annotations

import os

from treeplay.observe.counters import counters
from treeplay.observe.internal import kept_errors
from treeplay.observe.once import printed, warned
from treeplay.observe.records import DEFAULT_LIMIT, compile_records
from treeplay.observe.timers import timers

_KEPT = (counters, timers, compile_records, warned, printed, kept_errors)


def reset() -> None:
    """Forget all counts, durations, records and what was said; take the ring's limit and sink back too."""
    for kept in _KEPT:
        kept.clear()
    compile_records.limit = DEFAULT_LIMIT
    compile_records.set_sink(None)


def _renew_locks() -> None:
    for kept in _KEPT:
        kept.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

"""The step that a recording on probation is at, and what follows from it.

Left out are recordings beside which a call of the program as it is could be told from a replay, or would cost what it is to
show: see `_why_not`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from treeplay.observe import counters
from treeplay.settings import settings
from treeplay.tree.cache import Cache
from treeplay.tree.table import Entry, Recording
from treeplay.tree.worth.probation import ProbationStep
from treeplay.values.signature import Kind

# Bytes on a GPU, in pieces of 32 MiB: the program takes them once more, and torch keeps them.
_MOST_SCRATCH = 64 * 2**20


def next_step(cache: Cache, entry: Entry, recording: Recording) -> ProbationStep | None:
    """What a call of `recording` is to be; None for a replay like any other. One that goes has been dropped."""
    probation = recording.probation
    if probation is None:
        return None
    cache.settle()
    if recording.calls < probation.due:
        return None
    if not probation.has_begun:
        if recording.is_settling or recording.next_tier is not None:
            probation.put_off(recording.calls)
            return None
        why_not = _why_not(entry, recording)
        if why_not:
            recording.probation, recording.worth = None, f"not timed beside the program as it is: {why_not}"
            return None
    step = probation.next(recording.calls)
    if step is ProbationStep.STAYS:
        recording.probation, recording.worth, recording.saved = None, probation.told, probation.saved
        counters.add("probation", "stays")
        return None
    if step is ProbationStep.GOES:
        counters.add("probation", "goes")
        cache.outdone(entry, recording, probation.told)
    return step


def timing_of(recording: Recording, step: ProbationStep | None) -> AbstractContextManager[None]:
    """What a call runs in that is this step."""
    is_timed = step is not None and recording.probation is not None
    return recording.probation.take() if is_timed else nullcontext()  # type: ignore[union-attr]


def _why_not(entry: Entry, recording: Recording) -> str:
    """Why a recording stays without being timed; an empty text if nothing speaks against it."""
    launch = recording.launch()
    if settings.tiers == "exact" or not settings.compare_with_eager:
        return "settings say so"
    if recording.signature.kind is Kind.DIFFERENTIABLE:
        return "its backward runs later, among what else the caller differentiates"
    if recording.draws and recording.lowering == "inductor":
        return "it draws other random numbers"
    if recording.effects:
        return "the program would print, log or write again"
    if recording.moved:
        return "state has moved to the device with it"
    if len(entry.recordings) > 1:
        return "there are several for such arguments"
    if launch.device != "cpu" and launch.scratch_bytes > _MOST_SCRATCH:
        return "that would take its memory a second time"
    return ""

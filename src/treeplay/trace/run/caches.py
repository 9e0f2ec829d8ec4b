"""Caches of functions in a traced run: what one lacks, a call makes that runs as it is.

Where a function runs under its cache and raises, the cache neither keeps a result nor drops one for it. So a trace ends at the
first operator there, and leaves the cache as it found it.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import _getframe
from typing import Any

from treeplay.errors import TooEarly
from treeplay.guards.caches import Filled, codes_behind
from treeplay.trace.run.tape import TraceTape
from treeplay.values.location import Location
from treeplay.values.refusal import Reason


def being_filled(cached: Iterable[Filled]) -> Any:
    """The function, of those that a run found, that computes just now what its cache lacks; None if none does."""
    return next((each.function for each in cached if each.has_missed() and _is_running(each.function)), None)


def too_early_for(function: Any, tape: TraceTape | None = None) -> TooEarly:
    """What to raise where the cache of a function lacks what the program asks for, and to note of a run that has begun."""
    reason = _why_it_lacks(function)
    if tape is not None:
        tape.is_too_early = tape.refusal is None
        reason = tape.refuse(reason.op, reason.why, reason.advice, reason.where).reason
    early = TooEarly(reason)
    early.may_last = True
    return early


def _why_it_lacks(function: Any) -> Reason:
    most, name = function.cache_parameters()["maxsize"], getattr(function, "__qualname__", "lru_cache")
    limit = "" if most is None else f", which keeps {most} result{'s' * (most != 1)},"
    code = next(iter(codes_behind(function)), None)
    return Reason(
        f"{name} (lru_cache{'' if most is None else f'(maxsize={most})'})",
        f"the cache of this function{limit} lacks a result that the program asks for, and the trace's own may not stay there",
        "give it a larger maxsize, so that what a call asks for is still there in the next one (a call that raises leaves "
        "nothing); or compute the tensors outside of the program",
        None if code is None else Location(code.co_filename, code.co_firstlineno, code.co_name),
    )


def _is_running(function: Any) -> bool:
    """Whether a function that has missed may be under way: its code, or code that nobody knows."""
    codes = {*map(id, codes_behind(function))}
    frame = _getframe(2) if codes else None
    while frame is not None and id(frame.f_code) not in codes:
        frame = frame.f_back
    return frame is not None or not codes

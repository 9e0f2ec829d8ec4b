"""Chooses the lowering of a traced program. Pure: the facts come in, a `Plan` goes out."""

from __future__ import annotations

from collections.abc import Sequence

from treeplay.values.plan import Plan

LOWERINGS = ("auto", "inductor", "aten", "capture")


def choose(
    *,
    wanted: str,
    compiler: str | None,
    shared: Sequence[tuple[int, int]] = (),
    is_folded: bool = False,
    is_small: bool = False,
    uncompiled: str | None = None,
) -> Plan:
    """The plan for a graph.

    `wanted` is the user's choice; `compiler` the C++ compiler's path or None; `shared` pairs of inputs that share memory
    of which one is written; `is_folded` says whether something is written whose own elements overlap; `is_small` is passed on;
    `uncompiled` says why compiled code would not do what the operators do, if it would not.
    """
    lowerings, why = _lowerings(wanted, compiler, bool(shared), is_folded, uncompiled)
    return Plan(lowerings, why, tuple(shared), is_small)


def _lowerings(
    wanted: str, compiler: str | None, is_shared: bool, is_folded: bool, uncompiled: str | None
) -> tuple[tuple[str, ...], str]:
    if wanted == "aten":
        return ("aten",), "asked for"
    # A compiled graph takes what it writes to be apart from all else: no choice of the user's makes that true.
    if is_shared:
        return ("aten",), "inputs share memory that is written: operators run in the program's order"
    if is_folded:
        return ("aten",), "what is written overlaps itself: operators run as they are"
    if uncompiled is not None:
        return ("aten",), uncompiled
    if wanted == "inductor":
        return ("inductor",), "asked for"
    if compiler is None:
        return ("aten",), "there is no compiler"
    return ("inductor", "aten"), f"compiled with {compiler}"

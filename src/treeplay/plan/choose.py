"""Chooses the lowering of a traced program. Pure: the facts come in, a `Plan` goes out."""

from __future__ import annotations

from collections.abc import Sequence

from treeplay.facts.plan import Plan

LOWERINGS = ("auto", "inductor", "aten")


def choose(*, wanted: str, compiler: str | None, shared: Sequence[tuple[int, int]], folded: Sequence[int]) -> Plan:
    """The plan for a graph.

    `wanted` is the user's choice; `compiler` the C++ compiler's path or None; `shared` pairs of inputs that share memory
    of which one is written; `folded` written inputs whose own elements overlap.
    """
    pairs = tuple(shared)
    if wanted != "auto":
        return Plan((wanted,), "asked for", pairs)
    if pairs:
        return Plan(("aten",), "inputs share memory that is written: operators run in the program's order", pairs)
    if folded:
        return Plan(("aten",), "an input that is written overlaps itself: operators run as they are", pairs)
    if compiler is None:
        return Plan(("aten",), "there is no C++ compiler", pairs)
    return Plan(("inductor", "aten"), f"compiled with {compiler}", pairs)

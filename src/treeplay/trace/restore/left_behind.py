"""What a program may not leave behind when it was traced: another random state, another mode, a tensor of the trace's."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from typing import Any

from treeplay.errors import Refusal, TooEarly
from treeplay.trace.restore.caching import forget_in_tables
from treeplay.trace.restore.snapshot import Snapshot
from treeplay.trace.run.caches import too_early_for
from treeplay.trace.run.tracer import Tracer
from treeplay.trace.signature.references import Refuse


def check_global_state(snapshot: Snapshot, refuse: Refuse, *, was_seeded: bool = False) -> None:
    """Refuse a program that drew in Python, seeded (`was_seeded`: or set a generator of torch's), or left a mode changed."""
    if was_seeded:
        raise refuse(
            "torch's generator",
            "the program seeds this generator, or leaves it in another state than the last new draw did: a replay sets none",
            "seed outside; put back the later state, or draw from a generator of its own",
        )
    used = snapshot.random_source_used()
    if used is not None:
        raise refuse(
            used[0],
            "the program draws from or seeds this generator in Python, so a recording would freeze what it drew",
            "draw with torch operators inside the program, or draw outside and pass a tensor; seed outside",
            used[1],
        )
    if snapshot.grad_mode_changed():
        raise refuse("grad mode", "the program leaves the grad mode changed", "use torch.no_grad() as a context")
    if snapshot.autocast_changed():
        raise refuse("autocast", "the program leaves autocast changed", "use torch.autocast(...) as a context")


def check_no_leak(tracer: Tracer) -> None:
    """Refuse a program that keeps a tensor of its trace, once all that the run held is let go."""
    if not (tracer.tape.leaked() or tracer.tape.was_cached):
        return
    # A fake in a reference cycle is garbage, which nobody keeps. Not for every trace: a collection takes long.
    gc.collect()
    kept = tracer.tape.leaked()
    forget_in_tables(kept)
    if kept or tracer.tape.was_cached:
        # What a trace found a cache to lack, a call that runs as it is leaves there.
        if tracer.tape.leaked():
            raise tracer.refuse(*_KEPT)
        raise TooEarly(tracer.refuse(*_KEPT).reason) if kept else too_early_for(tracer.tape.was_cached[0], tracer.tape)


_KEPT = (
    "store",
    "the program keeps a tensor in a place that treeplay cannot see, such as a list, a set or a foreign object",
    "return the tensor, or keep it in an attribute or an entry that exists before the call",
)


def check_dead(dying: Iterable[tuple[weakref.ref[Any], Refusal]]) -> None:
    """Refuse a program that keeps an object of its trace where only a weak reference tells, once all that the run held is let
    go: a replay leaves that reference dead."""
    for reference, refusal in dying:
        if reference() is not None:
            raise refusal

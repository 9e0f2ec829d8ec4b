"""Checkpoints in a program that the caller differentiates: eager computes what is in them once more, in the caller's backward.

A wrapper saves what a checkpoint computes again, so nothing there runs twice. What would show that it does not is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treeplay.observe.lines import user_location
from treeplay.torch_seam.checkpoints import is_of_reentrant_checkpoint
from treeplay.trace.run.tape import TraceTape
from treeplay.values.refusal import Reason

LINE = "treeplay: line"


def note_line(node: Any) -> None:
    """Have the node of a custom function that is called now know the user's line."""
    if is_of_reentrant_checkpoint(node):
        node.metadata[LINE] = user_location()


def why_not_again(tape: TraceTape, nodes: Iterable[Any]) -> Reason | None:
    """What a checkpoint of the program would do a second time in the caller's backward through `nodes`."""
    for node in nodes:
        if is_of_reentrant_checkpoint(node):
            return Reason(
                op="checkpoint",
                why="is reentrant, and its results are differentiated by the caller: it calls backward itself from within that "
                "backward, which no recording does",
                advice="pass use_reentrant=False to `checkpoint`, or call backward inside of the program",
                where=node.metadata.get(LINE),
            )
    for noted, (why, advice) in (
        (tape.written_again, _WRITES),
        (tape.drawn_again, _DRAWS),
        (tape.repeated, _REPEATS),
    ):
        if noted is not None:
            name, line = noted
            return Reason(op=name, why=why, advice=advice, where=line)
    return None


_WRITES = (
    "writes to a tensor that outlives the call in a checkpoint, which does so once more in the backward; the caller runs that, "
    "and a recording does not repeat it",
    "call backward inside of the program, or leave layers that write state (batch norms) out of the checkpoint",
)
_DRAWS = (
    "draws in a checkpoint that does not put the generator back before it draws once more in the backward, as one with "
    "preserve_rng_state=False puts none back, and others only torch's own, for the CPU and for the devices of their arguments; "
    "the caller runs that backward, and a recording does not repeat it",
    "draw from torch's own generators and leave preserve_rng_state=True, draw outside of the checkpoint, or call backward "
    "inside of the program",
)
_REPEATS = (
    "draws once more from an earlier state of the generator that the program has put back, and its results are differentiated "
    "by the caller: the run that a wrapper records would draw other numbers",
    "keep what was drawn in a tensor, or call backward on all of it inside of the program",
)

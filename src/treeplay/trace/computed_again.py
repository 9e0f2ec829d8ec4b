"""Checkpoints in a program that the caller differentiates: eager computes what is in them once more, in the caller's backward.

A wrapper saves what a checkpoint computes again, so nothing there runs twice. What would show that it does not is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from treeplay.observe.lines import user_location
from treeplay.torch_seam.checkpoints import is_of_reentrant_checkpoint
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.run.tape import TraceTape, spoken_name
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
    inputs = {storage_of(seen.value.fake) for seen in tape.inputs}
    for noted, (why, advice) in (
        (tape.checkpointed.written, _WRITES),
        (tape.checkpointed.drawn, _DRAWS),
        (tape.checkpointed.contexts(), _CONTEXTS),
        (tape.checkpointed.rebound(), _REBOUND),
        (tape.checkpointed.changed or tape.checkpointed.moved(inputs), _CHANGES),
        (tape.repeated, _REPEATS),
    ):
        if noted is not None:
            func, line = noted
            return Reason(op=spoken_name(func), why=why, advice=advice, where=line)
    return None


_WRITES = (
    "writes to a tensor that outlives the call, or was there before, in a checkpoint, which does so once more in the backward; "
    "the caller runs that, and a recording does not repeat it",
    "call backward inside of the program, or leave layers that write state (batch norms) out of the checkpoint",
)
_DRAWS = (
    "draws in a checkpoint that does not put the generator back before it draws once more in the backward, as one with "
    "preserve_rng_state=False puts none back, and others only torch's own, for the CPU and for the devices of their arguments; "
    "the caller runs that backward, and a recording does not repeat it",
    "draw from torch's own generators and leave preserve_rng_state=True, draw outside of the checkpoint, or call backward "
    "inside of the program",
)
_CONTEXTS = (
    "is called in a checkpoint that computes again in a context of its own (`context_fn`), or one that has kept what the "
    "program has written to since; the caller runs the backward that does so, and a recording does not repeat it",
    "leave `context_fn` out or make it by `create_selective_checkpoint_contexts`, keep nothing that is written in place, or "
    "call backward inside of the program",
)
_CHANGES = (
    "writes to a tensor that a checkpoint reads; that reads it once more in the backward, which the caller runs, and a "
    "recording computes nothing again",
    "pass the checkpoint a clone, write out of place, or call backward inside of the program",
)
_REBOUND = (
    "is called in a checkpoint whose function uses a variable that the program sets to something else afterwards, as a loop "
    "does: in the backward, which the caller runs, eager finds that there",
    "pass the value to `checkpoint` as an argument, or bind it (`lambda y, layer=layer: ...`)",
)
_REPEATS = (
    "draws once more from an earlier state of the generator that the program has put back, and its results are differentiated "
    "by the caller: the run that a wrapper records would draw other numbers",
    "keep what was drawn in a tensor, or call backward on all of it inside of the program",
)

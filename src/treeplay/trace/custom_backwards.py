"""Custom functions of a program that the caller differentiates: the Python of their backwards, which the caller will run.

It is run once for what it reads, which is guarded. A wrapper traces its operators later; nobody repeats what else it does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from treeplay.errors import Refusal
from treeplay.observe.shown import ShownText
from treeplay.torch_seam.autograd import call_backward, history, is_custom_node, node_of
from treeplay.torch_seam.modes import DisableTorchFunction
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.raised import SignalCheck, program_raised
from treeplay.trace.traced import TracedRun
from treeplay.trace.turn import Busy
from treeplay.values.location import Location


def run_custom_backwards(run: TracedRun, leaves: Iterable[torch.Tensor]) -> None:
    """Have the Python of custom functions' backwards, which the caller will run, run once for what it reads: that is guarded.

    A wrapper traces its operators later (`rerun.py`), and nobody repeats what else it does: that is refused."""
    tape = run.tracer.tape
    was_noting = run.reads.pause()
    try:
        with DisableTorchFunction():
            nodes = [*_custom_nodes(run, leaves)]
        run.has_own_backwards = bool(nodes)
        with tape.aside(), torch.no_grad():
            for node in nodes:
                _run_custom_backward(run, node, was_noting=was_noting)
    finally:
        if was_noting:
            run.reads.resume()


def _custom_nodes(run: TracedRun, leaves: Iterable[torch.Tensor]) -> Iterator[Any]:
    tape = run.tracer.tape
    if tape.fills_gradients or run.stepped or run.tracer.lasting.given_history:
        return  # a whole step, or refused
    yield from custom_behind(run, leaves)


def custom_behind(run: TracedRun, leaves: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Those of custom functions among these nodes."""
    return filter(is_custom_node, nodes_behind(run, leaves))


def nodes_behind(run: TracedRun, leaves: Iterable[torch.Tensor]) -> Iterator[Any]:
    """The nodes that the program has put between its inputs and these tensors."""
    of_the_caller = [node_of(seen.tensor) for seen in run.tracer.tape.inputs]
    return history((leaf.grad_fn for leaf in leaves), of_the_caller)


def _run_custom_backward(run: TracedRun, node: Any, *, was_noting: bool) -> None:
    tape, before = run.tracer.tape, _stored(run)
    mutated = {*tape.mutated}
    if was_noting:
        run.reads.resume()
    try:
        with SignalCheck():
            call_backward(node)
    except (Refusal, Busy):
        raise
    except Exception as error:
        raise program_raised(error) from error
    finally:
        run.reads.pause()
    stored = [place for place, value in _stored(run).items() if not _is_told_alike(before.get(place, run), value)]
    with DisableTorchFunction():
        written = {storage_of(seen.value.fake) for seen in tape.inputs} & (tape.mutated - mutated)
    why = None
    if stored:
        why = f"changes {stored[0]}"
    elif written:
        why = "writes to a tensor that outlives the call"
    elif tape.fills_gradients:
        why = "adds to gradients by a backward of its own"
    if why is not None:
        cls = node._forward_cls
        code = getattr(cls.backward, "__code__", None)
        raise tape.refuse(
            f"{cls.__name__}.backward",
            f"{why}, which no backward of a recording repeats",
            "have it give gradients and nothing else; or call backward inside of the program",
            Location(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else None,
        )


def _is_told_alike(before: Any, now: Any) -> bool:
    # What no replay can make is told as a text, which is made anew each time: read hooks in a class met on the way, too.
    return before is now or (isinstance(before, ShownText) and isinstance(now, ShownText) and repr(before) == repr(now))


def _stored(run: TracedRun) -> dict[str, Any]:
    with DisableTorchFunction():
        return {str(change.place): change.after for change in run.snapshot.changes()}

"""The outcome of a traced run: what it returned and stored becomes the graph's outputs and the signature.

run, result ─┬ the caller differentiates it: `flat_results`, and the program is run again later
             └ else: results and slots, each output once ─▶ graph ─ prune ─ make_signature ▶ Trace

Comes after the run, while everything still is as the run left it: before the snapshot is put back.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from treeplay.errors import Refusal
from treeplay.trace.differentiable import flat_results, is_differentiable
from treeplay.trace.numbers.stand_ins import check_numbers, not_inputs, refuse_arrays
from treeplay.trace.signature.make import has_symbol, make_signature
from treeplay.trace.signature.prune import prune
from treeplay.trace.signature.results import Results
from treeplay.trace.signature.slots import find_writes
from treeplay.trace.signature.stores import note_what_is_gone, stores_of_the_same, stores_over_stand_ins, stores_unread
from treeplay.trace.traced import Trace, TracedRun
from treeplay.trace.training.schedules import Schedules
from treeplay.trace.turn import Busy
from treeplay.values.place import How
from treeplay.values.signature import Kind, Number


def _is_used(number: Number, run: TracedRun) -> bool:
    """Whether the run has computed or branched with a number of the state."""
    (node,) = (node for node in run.tracer.tape.graph.find_nodes(op="placeholder") if node.target == number.name)
    return bool(node.users) or any(has_symbol(text, number.name) for text in run.tracer.world.guards)


def _take_in_arguments_in_state(run: TracedRun) -> None:
    """Arguments that are in state too are inputs, used or not: only where one is there again is it no change to store it."""
    for tensor in run.call.tensors:
        is_in_state = any(place.how is not How.ARGUMENT for place in run.found.tensor_at(tensor))
        if is_in_state and id(tensor) not in run.tracer.tape.values:
            run.tracer.tape.add_input(tensor)


def outcome_of(run: TracedRun, result: Any, schedules: Schedules) -> Trace:
    """The trace of a run that returned `result`; raises `Refusal`, and `Busy` if another thread disturbed it."""
    tape, call = run.tracer.tape, run.call
    check_numbers(run)
    _take_in_arguments_in_state(run)
    if is_differentiable(run, result):
        if run.given:
            why = "it is a number that varies, and the program's results are differentiated by the caller"
            raise Refusal.of(f"argument {run.given[0].place.label}", why, "pass a tensor", None)
        if call.arrays:
            raise refuse_arrays(call, "has results that the caller differentiates")
        used = [number.place for number in run.varying if _is_used(number, run)]
        if used:
            raise not_inputs(
                run, used, "it is a number that varies, and the program's results are differentiated by the caller"
            )
        if schedules.stepped:
            raise schedules.refuse()
        run.kind = Kind.DIFFERENTIABLE
        shown, outputs = flat_results(run, result)
        structure, refs, writes = shown.results, shown.refs, shown.writes
        is_inference = None
    else:
        run.kind = Kind.WHOLE_STEP if tape.uses_backward or run.stepped else Kind.INFERENCE
        results = Results(run.tracer, run.found)
        note_what_is_gone(run)
        run.snapshot.assigned = [*stores_of_the_same(run), *stores_over_stand_ins(run)]
        run.snapshot.unread = stores_unread(run)
        # Results first: a tensor that is returned and stored is one output.
        structure, refs = results.of_call(result, run.snapshot.stored())
        but = call.state if call.is_plain else None
        writes = find_writes(run.snapshot, results, run.numbers, but, call.fixed)
        outputs, is_inference, run.dying = results.outputs, results.is_inference, results.dying
    tape.graph.output(tuple(outputs))
    prune(tape.graph)
    if run.snapshot.whose is not None and run.snapshot.whose.disturbed is not None:
        raise Busy  # another thread changed what the run has read: the next call reads it as it is then
    signature = dataclasses.replace(
        make_signature(run, structure, refs, writes, len(outputs)),
        is_inference=is_inference,
        schedules=tuple(schedules.stepped),
        state_numbers=call.state,
        host_reads=tuple(tape.host_reads),
    )
    for seen, item in zip(tape.inputs, signature.inputs, strict=True):
        seen.value.node.meta["is_untold"] = not item.is_told
    has_repeats = tape.repeated is not None
    return Trace(tape.graph, signature, tape.log, tuple(tape.generators.values()), has_repeats=has_repeats)

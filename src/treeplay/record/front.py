"""The front of a recording: what is known of a program before anything is compiled.

program, call ─ trace ▶ Trace ─ compare with the first run ─ plan ▶ Front

Nothing is recorded here, and no tensor is changed. All ways of making a recording of a trace begin with a `Front`, and
`treeplay.check` ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from treeplay.codegen.compiler import find_compiler, find_gpu_compiler
from treeplay.errors import Differing, Refusal, TooEarly
from treeplay.lower.aten.storage import writes_folded
from treeplay.lower.functional import draws_often
from treeplay.lower.inductor.lowering import keeps_draws_in_order
from treeplay.plan.answers import check_can_be_taken_back
from treeplay.plan.choose import choose
from treeplay.plan.devices import CPU, device_of_program, settle
from treeplay.plan.failing import MOST_BYTES, bytes_to_keep, first_uncompiled, to_keep
from treeplay.plan.work import is_small
from treeplay.record.timed import timed
from treeplay.settings import settings
from treeplay.trace.call import Call
from treeplay.trace.going_on import EagerReads
from treeplay.trace.jit import trace
from treeplay.trace.log import first_difference, other_operators, takes_large_layers
from treeplay.trace.observe import Log
from treeplay.trace.survey.recordable import plain_values_of, survey_if_any
from treeplay.trace.traced import Trace
from treeplay.tree.audit import Audit
from treeplay.values.overlap import overlapping, overlaps_itself
from treeplay.values.place import How, Place
from treeplay.values.plan import Plan
from treeplay.values.same import is_same
from treeplay.values.signature import Signature, may_be_input
from treeplay.wrap.conditions_on_numbers import Branches
from treeplay.wrap.found import current_inputs


@dataclass(frozen=True, slots=True)
class Front:
    """What the stages before the first compilation give: the trace, its device, today's inputs, and the plan.

    `moving`: indices of the inputs that are on the CPU and move to the device with the recording.
    """

    traced: Trace
    device: torch.device
    moving: tuple[int, ...]
    inputs: list[torch.Tensor]
    plan: Plan
    audit: Audit | None


def run_front(
    program: Callable[..., Any],
    call: Call,
    first_run: Log,
    seconds: dict[str, float],
    *,
    lower: str,
    eager_reads: EagerReads | None = None,
) -> Front:
    """The stages up to the plan, which compile and record nothing. `eager_reads`: to find what else is in the way behind a
    refusal."""

    is_exact = lower == "aten" or takes_large_layers(first_run)

    def retrace(call: Call) -> Trace:
        return trace(program, call, is_exact=is_exact, first_run=first_run, eager_reads=eager_reads)

    try:
        with timed("trace", seconds):
            traced = retrace(call)
        with timed("compare", seconds):
            difference = first_difference(first_run, traced.log)
            if difference is not None and not _went_otherwise(first_run, program, call, traced.signature):
                raise Differing(replace(difference, may_pass=True))
            if call.has_numbers:
                # A symbol in the place of a number has another type, which the program may have asked for.
                difference = other_operators(retrace(call.plain()).log, traced.log)
                if difference is not None:
                    raise Refusal(replace(difference, may_pass=True))
        audit = Audit(traced, retrace, seconds["trace"])
        with timed("plan", seconds):
            return _planned(traced, call, lower, audit)
    except (Differing, TooEarly):
        raise
    except Refusal as refusal:
        if call.has_numbers and not refusal.needed and eager_reads is None:
            refusal.is_of_other = _is_refused(lambda: _planned(retrace(call.plain()), call, lower, None))
        raise


def _planned(traced: Trace, call: Call, lower: str, audit: Audit | None) -> Front:
    device = device_of_program(traced)
    traced, moving = settle(traced, device)
    inputs = current_inputs(traced.signature, call)
    check_can_be_taken_back(traced, inputs)
    return Front(traced, device, moving, inputs, make_plan(traced, inputs, lower, device), audit)


def _is_refused(make: Callable[[], object]) -> bool:
    try:
        make()
    except TooEarly:  # a later call may pass
        return False
    except Refusal:
        return True
    return False


def _went_otherwise(first_run: Log, program: Callable[..., Any], call: Call, signature: Signature) -> bool:
    """Whether Python went another way in the first run, by what is compared on each call: it took a branch otherwise on numbers
    that are inputs, or began with another flag or name. The numbers of that run say nothing of this one then."""
    began_with = first_run.began_with
    now = plain_values_of(survey_if_any(program, call), call)
    both = [(was, now[place]) for place, was in began_with.items() if place in now]
    if any(not (may_be_input(was) or may_be_input(is_now) or is_same(was, is_now)) for was, is_now in both):
        return True
    were = {number.name: began_with.get(_key(number.place)) for number in signature.numbers}
    were = {name: value for name, value in were.items() if may_be_input(value)}
    branches = [Branches(guard, signature.numbers) for guard in signature.guards]
    return not all(branch.is_met(were) for branch in branches if branch.names <= were.keys())


def _key(place: Place) -> Any:
    return place.key if place.how is How.ARGUMENT else place.trail


def make_plan(traced: Trace, inputs: list[torch.Tensor], lower: str, device: torch.device) -> Plan:
    """Gather the facts and choose the lowering."""
    signature = traced.signature
    return choose(
        wanted=lower,
        compiler=(find_compiler() if device == CPU else find_gpu_compiler()).path,
        shared=overlapping(inputs, signature.mutated),
        is_folded=writes_folded(traced.graph) or any(overlaps_itself(inputs[index]) for index in signature.mutated),
        is_small=is_small(traced.graph),
        uncompiled=_why_uncompiled(traced.graph, device) if lower != "aten" else None,
    )


def _why_uncompiled(graph: torch.fx.Graph, device: torch.device) -> str | None:
    """Why compiled code would not fail, draw, or leave things, as the operators of a graph do; None if it does."""
    if settings.eager_random and draws_often(graph) and not keeps_draws_in_order():
        return (
            "random numbers are to be eager's, and this release of Inductor changes the order in which they are drawn"
        )
    node = first_uncompiled(graph)
    if node is not None:
        return f"{node.target} checks or does something that compiled code leaves out"
    keep = to_keep(graph, is_in_order=False)
    if device == CPU and keep is not None and not keep.unless and bytes_to_keep(graph, keep) > MOST_BYTES:
        return "an operator may fail on values, and too much is written to be taken back: operators run in order"
    return None

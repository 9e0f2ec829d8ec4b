"""A recording of a program that the caller differentiates: it is run again under ahead-of-time tracing, and wrapped.

Front ─ run_wrap ▶ a wrapper with a forward and a backward ─ emit_around ▶ call function ▶ Recording

Where the recording has tiers, calls begin with a wrapper that runs operators one by one. Another one is compiled by Inductor in
the background, and calls go to it from then on; those whose backward is to come keep theirs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from treeplay.codegen import load_source
from treeplay.observe import counters
from treeplay.plan.devices import check_stays
from treeplay.record.front import Front
from treeplay.record.lowered import keeps_tiers
from treeplay.record.taking_back import take_back
from treeplay.record.timed import timed
from treeplay.trace.call import Call
from treeplay.tree.make import set_run
from treeplay.tree.table import NextWrapper, Recording
from treeplay.tree.tiers import compile_thread
from treeplay.values.launch import LaunchFacts
from treeplay.values.signature import Signature
from treeplay.wrap.differentiable import Wrap, Wrapped, emit_around, of_tensors_only, wrap_program


def run_differentiable(
    program: Callable[..., Any], call: Call, front: Front, seconds: dict[str, float], *, name: str
) -> Recording:
    """The stages after the plan for a program that the caller differentiates: it is run again, and wrapped."""
    has_tiers = keeps_tiers(front)
    lowering = "aten" if has_tiers else front.plan.lowerings[0]
    with timed("lower", seconds):
        signature, tensors, wrapped = run_wrap(program, call, front, lowering=lowering)
        if has_tiers:
            from treeplay.backend.autograd.later import wrap_for_later

            _, _, later = run_wrap(program, call, front, partial(wrap_for_later, add=compile_thread.add))
    with timed("wrap", seconds):
        operators = sum(node.op == "call_function" for node in front.traced.graph.nodes)
        on_the_host = LaunchFacts(str(front.device), "bound")
        back = take_back(front, (), is_in_order=False)
        source = emit_around(signature, call, tensors, wrapped, name=name, back=back)
        call_function = load_source(source)
        call_of = weakref.ref(call_function)
        recording = Recording(
            call=call_function,
            signature=signature,
            plan=front.plan,
            lowering=lowering,
            operators=operators,
            launch=lambda: wrapped.launch() or on_the_host,  # not `front`, which holds this call's tensors
            free=lambda: None,  # a result may still be waiting for its backward: what they hold goes with the last one
            source="\n".join((source.text, *wrapped.sources)),
            launched=source.launched,
            seconds=seconds,
            details={"backward": wrapped.backward},
            plain_calls=wrapped.plain_calls,
            set_run=lambda run: set_run(call_of(), run),
        )
        if has_tiers:
            acting = acting_of(front)
            recording.next_tier = NextWrapper(
                partial(_compile_wrapper, later, acting), partial(_adopt, source.text, later)
            )
        return recording


def _compile_wrapper(later: Wrapped, acting: frozenset[Any]) -> None:
    # Imported when it is needed: the backend takes seconds, and most programs do without.
    from treeplay.backend.acting import kept

    if later.compile is not None:
        with kept(acting):
            later.compile()


def _adopt(source: str, later: Wrapped, recording: Recording) -> None:
    """Have the calls of a recording go to a wrapper that is compiled by now. Calls whose backward is to come keep theirs."""
    if recording.set_run is None:
        return
    recording.lowering, recording.tier = "inductor", "Inductor's took the place of the operators one by one"
    recording.source = "\n".join((source, *later.sources))
    recording.details = {**recording.details, "backward": later.backward}
    launch, plain_calls = recording.launch, recording.plain_calls
    recording.launch = lambda: later.launch() or launch()
    recording.plain_calls = lambda: plain_calls() + later.plain_calls()
    recording.set_run(later.run)
    counters.add("tiers", "inductor")


def run_wrap(
    program: Callable[..., Any], call: Call, front: Front, wrap: Wrap | None = None, *, lowering: str | None = None
) -> tuple[Signature, tuple[torch.Tensor, ...], Wrapped]:
    """The wrap stage of a differentiable program; raises `Refusal`.

    `wrap` makes its forward and backward: with the compilers of the backend, if no other is given. `lowering`: instead of the
    first of the plan.
    """
    check_stays(front.traced.signature, front.moving, front.device)
    from treeplay.backend.acting import kept
    from treeplay.backend.autograd.differentiable import wrap_flat

    signature, tensors = of_tensors_only(front.traced.signature, call, front.inputs)
    with kept(acting_of(front)):
        lowering, reads = lowering or front.plan.lowerings[0], front.traced.reads
        wrapped = wrap_program(program, call, signature, tensors, wrap or wrap_flat, lowering=lowering, reads=reads)
    return signature, tensors, wrapped


def acting_of(front: Front) -> frozenset[Any]:
    """The operators of a traced program that act."""
    from treeplay.backend.acting import acting_in

    return acting_in(front.traced.graph)

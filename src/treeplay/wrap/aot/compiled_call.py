"""From a traced function and its plan to the function that a call runs: split, compile, emit, load.

Inference is one graph. Training is a forward with a node around it, whose backward is compiled when it is first needed, as if
still in the trace that it comes from.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treeplay.graph_check import check_module
from treeplay.torch_seam import context as torch_context
from treeplay.torch_seam import flags
from treeplay.torch_seam.aot import Traced
from treeplay.torch_seam.flags import AutocastDtypes
from treeplay.values.boxed import Boxed
from treeplay.wrap.aot.calls.again import HigherDerivatives, Onward, origins_of, why_not_recomputed
from treeplay.wrap.aot.calls.first_call import Instead, first_call
from treeplay.wrap.aot.calls.kept import kept_inputs, overwritten_inputs
from treeplay.wrap.aot.calls.lazy_backward import Compiled, LazyBackward, RunFor, as_it_lies
from treeplay.wrap.aot.calls.partial import without_gradients
from treeplay.wrap.aot.calls.random_states import generator_inputs
from treeplay.wrap.aot.calls.redrawn import draws_of
from treeplay.wrap.aot.calls.surroundings import refuse_compiled_autograd, run_in_callers_context
from treeplay.wrap.aot.calls.under_autocast import UnderAutocast
from treeplay.wrap.aot.compilers import ARGUMENT, INNER, VISIBLE, Compile, Compilers
from treeplay.wrap.aot.emit.load import load_call
from treeplay.wrap.aot.plan.facts import CallPlan, LateWrite
from treeplay.wrap.aot.plan.memory import inner_values_last
from treeplay.wrap.aot.plan.planning_node import plan_node, saved_by, values_with_tangents
from treeplay.wrap.aot.tracing.custom_backwards import name_tangents
from treeplay.wrap.aot.tracing.findings import TraceFindings
from treeplay.wrap.aot.tracing.stashed import compute_once_what_is_stashed
from treeplay.wrap.aot.tracing.writes_inside import write_inside, writes_of_forward


def load_inference(traced: Traced, plan: CallPlan, compilers: Compilers) -> Any:
    """The call around a graph without a backward."""
    _mark_arguments(traced.graph, plan)
    with torch.no_grad():
        _mark_visible(traced.graph, plan)
        instead = _first_call(traced.graph, plan, compilers)
        run = compilers.inference(traced.graph, traced.inputs)
    call = load_call(plan, run, instead=instead, direct=compilers.direct)
    call.draws = draws_of(traced.graph)
    return call


def load_training(
    traced: Traced,
    seen: TraceFindings,
    plan: CallPlan,
    late: tuple[LateWrite, ...],
    compilers: Compilers,
    again: HigherDerivatives | None,
    harmless: Callable[[], AutocastDtypes],
) -> Any:
    """The call around a forward and its node, whose backward is compiled when it is first needed. `harmless()`
    is the autocast, if any, under which that is the same backward: asked for now where it cannot be found out later."""
    _mark_arguments(traced.graph, plan)
    refuse_compiled_autograd()
    with torch.no_grad():
        compute_once_what_is_stashed(traced.graph)
        origins = origins_of(traced.facts, values_with_tangents(traced.facts, plan))
        ends = [(origin.written, origin.result) for origin in origins]
        name_tangents(traced.graph.graph, ends)
        overwritten = overwritten_inputs(traced)
        forward, backward = compilers.partition(
            traced.graph,
            traced.inputs,
            num_fwd_outputs=plan.returned_values,
            static_lifetime_input_indices=[],
        )
        writes = writes_of_forward(traced, forward, plan, late)
        unseen = [write.value for write in writes]
        last = inner_values_last(forward, backward, returned=plan.returned_values, unseen=unseen)
        connected = frozenset[int]().union(*(seen.leads_to.get(end, ()) for end in ends))
        node = plan_node(traced, plan, forward, backward, late, inner=last, connected=connected)
        # A caller who stays in autocast for the backward may need its gradients computed from the inputs again.
        saved, is_every = saved_by(forward, plan), compilers.keeps_inputs or flags.is_any_autocast_enabled()
        kept = kept_inputs(traced, node, forward, saved, overwritten, is_every=is_every)
        why = compilers.why_once or why_not_recomputed(traced, node, forward, kept)
        if why is None and again is not None:
            node = dataclasses.replace(node, inputs=kept, draws=draws_of(forward))
        _mark_visible(forward, plan)
        first = plan.returned_values + node.first_inner
        forward.graph.output_node().meta[INNER] = (first, first + node.inner)
        plan, node = write_inside(forward, plan, node, writes)
        onward = Onward(again if why is None else None, why, node, origins)
        under_autocast = UnderAutocast(onward, harmless() if why is not None or again is None else ())
        plan = dataclasses.replace(plan, node=node)
        instead = _first_call(forward, plan, compilers)
        run = compilers.forward(forward, [*traced.inputs[0], *traced.inputs[2:4], *generator_inputs(forward)])
    tangents = 0 if node.is_whole else len(node.tangents)  # else zeros come for those that are missing
    later, inner = _later(compilers.backward, backward, tangents), node.first_inner if node.inner else None

    def lazy_without(unwanted: tuple[int, ...]) -> LazyBackward:
        return LazyBackward(functools.partial(later, unwanted), tangents, inner=inner)

    lazy = lazy_without(())
    boxed = _called(lazy, backward)
    run_for = RunFor(boxed, lambda unwanted: _called(lazy_without(unwanted), backward)) if node.acts_for_some else None
    call = load_call(
        plan,
        run,
        boxed,
        onward=onward,
        under_autocast=under_autocast,
        run_for=run_for,
        instead=instead,
        direct=compilers.direct,
    )
    call.backward, call.draws = lazy, node.draws
    return call


def _called(lazy: LazyBackward, backward: torch.fx.GraphModule) -> Boxed:
    """The backward as it is called: with its caller's context variables."""
    return functools.partial(run_in_callers_context, lazy) if _is_threaded(backward) else lazy


def _is_threaded(backward: torch.fx.GraphModule) -> bool:
    """Whether the autograd engine runs this on a thread of its own, as it does for devices."""
    values = [node.meta.get("val") for node in backward.graph.find_nodes(op="placeholder")]
    return any(isinstance(value, torch.Tensor) and value.device.type != "cpu" for value in values)


def _first_call(graph: torch.fx.GraphModule, plan: CallPlan, compilers: Compilers) -> Instead | None:
    return first_call(graph, alias_check=compilers.alias_check, has_wrappers=plan.opened is not None)


def _mark_arguments(graph: torch.fx.GraphModule, plan: CallPlan) -> None:
    """Note at the placeholders of arguments where these stand in the call. The split into two graphs keeps such notes."""
    nodes = graph.graph.find_nodes(op="placeholder")
    for places, position in zip(plan.places_of_inputs(), plan.inputs, strict=True):
        if position < len(plan.arguments):  # the others are bases
            for at in places:
                nodes[at].meta[ARGUMENT] = position


def _mark_visible(graph: torch.fx.GraphModule, plan: CallPlan) -> None:
    """Note which results a user sees: after the new contents of arguments, and before what the backward needs."""
    visible = plan.places_of_values()[len(plan.writes) :]
    graph.graph.output_node().meta[VISIBLE] = tuple(at for places in visible for at in places)


def _later(
    compiler: Compile, backward: torch.fx.GraphModule, tangents: int
) -> Callable[[tuple[int, ...], tuple[int, ...], Sequence[Any]], Compiled]:
    """Compile the backward when it is first needed, from a copy of its graph and as if still in this trace."""
    context = torch_context.keep_tracing_context()

    def compile_backward(unwanted: tuple[int, ...], missing: tuple[int, ...], values: Sequence[Any]) -> Compiled:
        with context(), torch.no_grad():
            module, taken = without_gradients(backward, tangents, missing, unwanted)
            check_module(module, "missing gradients were left out")
            traced = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
            inputs = [as_it_lies(fake, values[k]) for fake, k in zip(traced, taken, strict=True)]
            with flags.without_autocast():
                return compiler(module, inputs), taken

    return compile_backward

"""The two graphs that a joint graph is cut into → a `NodePlan`: what the autograd node of a call does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.observe.lines import location_in
from treeplay.torch_seam import tensors
from treeplay.torch_seam.aot import Traced, is_new
from treeplay.torch_seam.schemas import returns_memory
from treeplay.values.output import Fresh, values_used
from treeplay.wrap.aot.calls.partial import backward_groups, reached_from
from treeplay.wrap.aot.calls.random_states import generator_inputs
from treeplay.wrap.aot.plan.facts import CallPlan, LateWrite, NodePlan, Tangent, WrappedTangent
from treeplay.wrap.aot.plan.layouts import fake_value, known_layout
from treeplay.wrap.aot.plan.memory import fresh_values, seen_elsewhere
from treeplay.wrap.aot.plan.subclasses import Wrapper, graph_positions, tangent_wrappers, width
from treeplay.wrap.aot.tracing.custom_backwards import acting
from treeplay.wrap.aot.tracing.findings import refusal_to_wrap
from treeplay.wrap.aot.tracing.stashed import IS_STASHED


def plan_node(
    traced: Traced,
    plan: CallPlan,
    forward: torch.fx.GraphModule,
    backward: torch.fx.GraphModule,
    late: tuple[LateWrite, ...],
    *,
    inner: int,
    connected: Collection[int],
) -> NodePlan:
    """What the autograd node does, once the joint graph is cut in two; of the saved values, `inner` come last. `connected`: the
    inputs that its values lead to in autograd's graph of the program."""
    facts = traced.facts
    saved = saved_by(forward, plan)
    for node in saved:
        if not isinstance(fake_value(node), torch.Tensor):
            raise refusal_to_wrap("wrap", "a number that the trace does not know is needed for the backward", None)
    values = values_with_tangents(facts, plan)
    wrappers = tangent_wrappers(traced, len(values))
    inputs = backward.graph.find_nodes(op="placeholder")
    groups = [inputs[at.start : at.stop] for at in graph_positions(wrappers, len(saved))]
    arriving = sum(map(len, groups))
    devices = [str(generator.device) for generator in generator_inputs(forward)]
    tokens = facts.num_backward_tokens
    now = sum(write.argument is not None for write in late)
    others = now + tokens + len(devices)
    if len(inputs) != len(saved) + arriving + others:
        raise InternalError(f"the backward has {len(inputs)} inputs, expected {len(saved)} + {arriving} + {others}")
    feeds = _feeds(backward, groups, plan, facts, late=len(late))
    # Only where gradients, one input each, come last is there a backward for some of them.
    is_whole = plan.opened is not None or others > 0 or bool(late)
    apart = () if is_whole else backward_groups(backward, len(values))
    needing = [k for k, info in enumerate(facts.input_info) if info.requires_grad]
    # With a part in the node, an input has autograd run it, which eager does for what is connected only.
    detached = [k for k in needing if feeds[k] is None and k not in connected and not _is_opened(plan, k)]
    part = _acting_for_some(backward, range(len(values)), {*needing} - {*detached})
    if is_whole and part is not None:
        why = "a custom function's backward draws random numbers or acts otherwise, and may run for some of the gradients only"
        raise refusal_to_wrap("backward", why, location_in(part.meta.get("stack_trace")))
    return NodePlan(
        returned=_returned(plan),
        differentiable=values,
        saved=len(saved),
        unchecked=_unchecked(saved),
        tangents=tuple(
            _tangent(*parts, where=_made_at(forward, plan, parts[0]))
            for parts in zip(values, wrappers, groups, strict=True)
        ),
        feeds=feeds,
        groups=apart,
        is_whole=is_whole,
        acts_for_some=part is not None,
        inner=0 if apart else inner,  # what one backward has freed, a block would keep for the others
        detached=tuple(detached),
        views=_views(forward, plan),
        copied=_copied(forward, saved, plan),
        elsewhere=seen_elsewhere(forward, plan, saved),
        fresh=tuple(k - plan.returned_values for k in sorted(fresh_values(forward)) if k >= plan.returned_values),
        late=late,
        generators=tuple(devices),
        tokens=tokens,
        is_deterministic=bool(facts.deterministic),
    )


def _acting_for_some(
    backward: torch.fx.GraphModule, tangents: Collection[int], inputs: Collection[int]
) -> torch.fx.Node | None:
    """What acts in a backward, but not whenever that runs."""
    found = (node for node, why in acting(backward.graph) if why is not None and not why.is_for_all(tangents, inputs))
    return next(found, None)


def saved_by(forward: torch.fx.GraphModule, plan: CallPlan) -> list[torch.fx.Node]:
    """What a forward returns for its backward."""
    return list(forward.graph.output_node().args[0])[plan.returned_values :]  # type: ignore[arg-type]


def _views(forward: torch.fx.GraphModule, plan: CallPlan) -> tuple[int, ...]:
    """Results made as views of what nobody else sees: they leave the node as tensors of their own."""
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    nodes = [outputs[at.start] if len(at) == 1 else None for at in plan.places_of_values()]
    new = {result.index for result in plan.results if isinstance(result, Fresh)}
    new -= {k for k, wrapper in enumerate(plan.opened.values if plan.opened is not None else ()) if wrapper is not None}
    return tuple(
        k
        for k, node in enumerate(nodes)
        if k in new and isinstance(node, torch.fx.Node) and returns_memory(node.target)
    )


def _copied(forward: torch.fx.GraphModule, saved: Sequence[torch.fx.Node], plan: CallPlan) -> tuple[int, ...]:
    """Saved values that lie in an argument which is written after the graph.

    A graph that computes something again in the backward may save an argument that eager would not have saved. What
    the call writes to it must neither change the saved value nor make it look outdated."""
    written = {write.argument for write in plan.writes if write.has_data}
    inputs = forward.graph.find_nodes(op="placeholder")
    lying = zip(plan.places_of_inputs(), plan.inputs, strict=True)
    fakes = [fake_value(inputs[k]) for at, argument in lying if argument in written for k in at]
    targets = [value for value in fakes if isinstance(value, torch.Tensor)]
    return tuple(
        k for k, node in enumerate(saved) if any(tensors.shares_storage(fake_value(node), target) for target in targets)
    )


def _is_opened(plan: CallPlan, k: int) -> bool:
    return plan.opened is not None and plan.opened.arguments[k] is not None


def _unchecked(saved: Sequence[torch.fx.Node]) -> int:
    """How many of the saved values, counted from the end, are kept without noticing later writes.

    States of random generators come after all others; nobody else holds them.
    """
    first = next((k for k, node in enumerate(saved) if node.meta.get(IS_STASHED)), len(saved))
    return len(saved) - first


def values_with_tangents(facts: Any, plan: CallPlan) -> tuple[int, ...]:
    """Which values torch's joint graph takes a gradient for, in its order."""
    values = []
    for value, k in enumerate(facts.mutated_inp_runtime_indices):
        info = facts.input_info[k]
        if info.mutates_data and info.requires_grad:
            values.append(value)
    for k, info in enumerate(facts.output_info):
        needs = getattr(info, "requires_grad_for_backward", info.requires_grad)
        if is_new(info) and issubclass(info.raw_type, torch.Tensor) and needs:
            values.append(len(plan.writes) + k)
    bases = len(plan.writes) + len(facts.output_info)
    return (*values, *range(bases, plan.values))


def _returned(plan: CallPlan) -> tuple[int, ...]:
    """Values that something outside the node uses."""
    used = {write.value for write in plan.writes if write.has_data}
    used |= set(values_used(plan.results))
    return tuple(sorted(used))


def _made_at(forward: torch.fx.GraphModule, plan: CallPlan, value: int) -> str:
    """The user's line that made a value, where the front end noted lines; else nothing."""
    outputs = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    nodes = [outputs[at] for at in plan.places_of_values()[value]]
    lines = [location_in(node.meta.get("stack_trace")) for node in nodes if isinstance(node, torch.fx.Node)]
    return next((str(line) for line in lines if line is not None), "")


def _tangent(
    value: int, wrapper: Wrapper | None, nodes: Sequence[torch.fx.Node], *, where: str
) -> Tangent | WrappedTangent:
    parts = []
    for node in nodes:
        fake = fake_value(node)
        if not isinstance(fake, torch.Tensor):
            raise refusal_to_wrap("wrap", "a gradient made of tensors and something else", None)
        # Without gaps: what a part of something greater is computed to comes in memory of its own size.
        layout = known_layout(torch.empty_like(fake))
        parts.append(Tangent(value, layout, fake.dtype, fake.device, where))
    return parts[0] if wrapper is None else WrappedTangent(value, wrapper, tuple(parts), where)


def _feeds(
    backward: torch.fx.GraphModule,
    tangents: Sequence[Sequence[torch.fx.Node]],
    plan: CallPlan,
    facts: Any,
    *,
    late: int,
) -> tuple[tuple[int, ...] | None, ...]:
    """From which tangents each gradient comes: reachability in the backward graph."""
    reach = reached_from(backward.graph, tangents)
    gradients = list(backward.graph.output_node().args[0])  # type: ignore[arg-type]
    arguments = len(facts.input_info)
    wrappers = plan.opened.gradients if plan.opened is not None else (None,) * arguments
    expected = sum(map(width, wrappers))
    others = late + facts.num_backward_tokens
    if len(gradients) != expected + others or len(wrappers) != arguments:
        raise InternalError(f"the backward gives {len(gradients)} values, expected {expected} + {others}")
    feeds: list[tuple[int, ...] | None] = []
    for at in graph_positions(wrappers, 0):
        nodes = [node for node in gradients[at.start : at.stop] if isinstance(node, torch.fx.Node)]
        feeds.append(tuple(sorted(frozenset().union(*(reach[node] for node in nodes)))) if nodes else None)
    return tuple(feeds)

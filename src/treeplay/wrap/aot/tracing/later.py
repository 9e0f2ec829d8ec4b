"""Writes that the backward does, to arguments and to the gradients that arrive, as values that leave its graph.

    joint graph as traced                         as it is cut in two
    ───────────────────────────                   ─────────────────────────────────────────────
    forward   f = buf + 10                        f = buf + 10              value of the forward's write
    backward  b = f * 2      copy_(buf, b)        b = now * 2               `now`: what buf holds by then
              return …, grads                     return …, grads, b        the node copies b into buf

Between a forward and its backward other calls may write the same buffer: the backward reads what it finds, as in eager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from treeplay.errors import InternalError
from treeplay.graph_check import add_placeholder
from treeplay.torch_seam.aot import Traced
from treeplay.values.location import Location
from treeplay.wrap.aot.plan.facts import CallPlan, LateWrite
from treeplay.wrap.aot.plan.planning_node import values_with_tangents
from treeplay.wrap.aot.tracing.findings import refusal_to_wrap

_copy = torch.ops.aten.copy_.default


@dataclass(frozen=True, slots=True)
class _Both:
    """What the forward leaves in an input, and what the backward does, which the graph returns at a place."""

    state: torch.fx.Node
    value: torch.fx.Node
    place: int


def take_writes_out(
    traced: Traced, plan: CallPlan, where: Location | None, trace_in_graph: Callable[[], list[tuple[int, str]]]
) -> tuple[LateWrite, ...]:
    """Rewrite a joint graph so that the backward's writes are outputs after its gradients.

    `trace_in_graph` traces again, with the writes inside, and tells which inputs the forward writes and with which node."""
    graph = traced.graph.graph
    if plan.tokens or plan.opened is not None:
        _refuse_any(traced, plan, where, may_count=not plan.tokens)
    if plan.tokens:
        return ()
    both = _written_by_both(traced, plan, where, trace_in_graph)
    tangents = list(filter(_is_tangent, graph.find_nodes(op="placeholder")))
    results = len(values_with_tangents(traced.facts, plan))
    late: list[LateWrite] = []
    values: list[torch.fx.Node] = []
    for argument, (k, part) in zip(_arguments(graph), _parts(plan), strict=True):
        found = both.get(argument)
        state, value = (argument, _written_value(argument)) if found is None else (found.state, found.value)
        if value is None:
            continue
        if results > 1:
            name = plan.name(plan.inputs[k])
            why = f"`{name}` is written in the backward, and whose backward of {results} results that is, is not known"
            advice = "return one result that needs a gradient, or run this function without treeplay"
            raise refusal_to_wrap("write", why, where, advice)
        now = _now(graph, argument, len(tangents) + len(late))
        state.replace_all_uses_with(now, _is_backward)
        needs_grad = bool(traced.facts.input_info[k].requires_grad)
        late.append(LateWrite(argument=plan.inputs[k], tangent=None, needs_grad=needs_grad, part=part))
        # The copy is erased: it was not given `now` with the other users.
        values.append(now if value is state else value)
    for k, tangent in enumerate(tangents):
        value = _written_value(tangent)
        if value is not None:
            late.append(LateWrite(argument=None, tangent=k, needs_grad=False))
            values.append(value)
    if late:
        # The graph gives in these places what the backward leaves, which `values` have by now.
        _return_too(traced.graph, values, {found.place: found.state for found in both.values()})
    return tuple(late)


def _return_too(module: torch.fx.GraphModule, values: list[torch.fx.Node], others: dict[int, torch.fx.Node]) -> None:
    """Return `values` after the results, of which those at some places become `others`."""
    output = module.graph.output_node()
    outputs: Any = output.args[0]
    output.args = ([*(others.get(at, result) for at, result in enumerate(outputs)), *values],)
    told = output.meta.get("desc")
    if told is not None:  # torch's word for what each output is
        output.meta["desc"] = [*told, *[None] * len(values)]
    module.graph.lint()
    module.recompile()


def _arguments(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.find_nodes(op="placeholder") if not _is_tangent(node)]


def _parts(plan: CallPlan) -> list[tuple[int, str]]:
    """For each placeholder of an argument, which input it stands for, and for which part of one made of others."""
    wrappers = plan.opened.arguments if plan.opened is not None else (None,) * len(plan.inputs)
    opened = [[""] if wrapper is None else wrapper.opened("") for wrapper in wrappers]
    return [(k, part) for k, parts in enumerate(opened) for part in parts]


def _refuse_any(traced: Traced, plan: CallPlan, where: Location | None, *, may_count: bool) -> None:
    """Refuse writes of the backward in a graph that takes and returns more than the arguments, gradients and values.

    With `may_count`, only those to gradients."""
    outputs: Any = traced.graph.graph.output_node().args[0]
    writes = [outputs[at] for places in plan.places_of_values()[: len(plan.writes)] for at in places]
    copied = [node.args[0] for node in traced.graph.graph.find_nodes(op="call_function", target=_copy)]
    late = [target for target in copied if target.op == "placeholder" and not (may_count and not _is_tangent(target))]
    if late or (not may_count and any(map(_is_backward, writes))):
        beside = "tensors made of other tensors" if plan.opened is not None else "operators with side effects"
        raise refusal_to_wrap("write", f"something is written in the backward, beside {beside}", where)


def forward_writes(traced: Traced) -> list[tuple[int, str]]:
    """Inputs that the forward of a graph with writes inside writes, with the names of the nodes that it writes."""
    graph = traced.graph.graph
    at = {argument: k for k, argument in enumerate(_arguments(graph))}
    copies: Any = graph.find_nodes(op="call_function", target=_copy)
    forward = [copy for copy in copies if copy.meta.get("partitioner_tag") == "must_be_in_forward"]
    return [(at[copy.args[0]], copy.args[1].name) for copy in forward]


def _written_by_both(
    traced: Traced, plan: CallPlan, where: Location | None, trace_in_graph: Callable[[], list[tuple[int, str]]]
) -> dict[torch.fx.Node, _Both]:
    """For each input that both directions write: what the forward leaves in it, and what the backward does."""
    graph = traced.graph.graph
    arguments = _arguments(graph)
    outputs: Any = graph.output_node().args[0]
    inputs, values = plan.places_of_inputs(), plan.places_of_values()
    written = enumerate(traced.facts.mutated_inp_runtime_indices)
    parts = [(k, *at) for value, k in written for at in zip(inputs[k], values[value], strict=True)]
    both = [part for part in parts if _is_backward(outputs[part[-1]])]
    if not both:
        return {}
    by_name = {node.name: node for node in graph.nodes}
    states = dict(trace_in_graph())
    found = {}
    for k, at, place in both:
        state = by_name.get(states.get(at, ""))
        if state is None or _is_backward(state):
            why = f"`{plan.name(plan.inputs[k])}` is written in the forward and in the backward, and needs a gradient"
            raise refusal_to_wrap("write", why, where)
        found[arguments[at]] = _Both(state, outputs[place], place)
    return found


def _written_value(target: torch.fx.Node) -> torch.fx.Node | None:
    """What the backward copies into a placeholder, which is then no longer copied."""
    copies = [user for user in target.users if user.target is _copy and user.args[0] is target]
    if not copies:
        return None
    if len(copies) > 1 or copies[0].users:
        raise InternalError(f"{target} is copied into {len(copies)} times, expected one copy that nothing reads")
    value: Any = copies[0].args[1]
    target.graph.erase_node(copies[0])
    return value  # type: ignore[no-any-return]


def _now(graph: torch.fx.Graph, argument: torch.fx.Node, number: int) -> torch.fx.Node:
    """An input of the backward for what an argument holds when it runs. Partitioners know such inputs by their name."""
    with graph.inserting_after(graph.find_nodes(op="placeholder")[-1]):
        node = add_placeholder(graph, f"tangents_{number + 1}")
    node.meta.update(argument.meta)
    node.meta["partitioner_tag"] = "is_backward"
    node.meta.pop("desc", None)
    return node


def _is_tangent(node: torch.fx.Node) -> bool:
    return "tangents" in str(node.target)


def _is_backward(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and "backward" in str(node.meta.get("partitioner_tag", ""))

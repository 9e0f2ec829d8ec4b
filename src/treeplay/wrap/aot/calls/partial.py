"""The backward for a call of autograd that brings gradients for some results only.

What depends on nothing but gradients that did not come is zero: eager never computes it, and neither does the graph made
here. Computing it with zeros would be slower and, beside an infinite derivative, wrong: 0 · inf is no number.

    backward(saved, g0, g1) = (g0 * a + g1 * b, g1 * c)      without g1:  (g0 * a, None)
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.fx import lazy_module, views_as_reshapes
from treeplay.torch_seam.operators import OpOverload
from treeplay.wrap.aot.compilers import LIES_ANEW
from treeplay.wrap.aot.plan.facts import BackwardGroup
from treeplay.wrap.aot.tracing.custom_backwards import acting

aten = torch.ops.aten


def without_gradients(
    backward: torch.fx.GraphModule, tangents: int, missing: Collection[int], unwanted: Collection[int] = ()
) -> tuple[torch.fx.GraphModule, tuple[int, ...]]:
    """A copy of `backward` without the gradients at the positions `missing` among its `tangents` last inputs, and without what
    only these need; also which inputs it takes. A gradient that depends on those alone is None, and so are those of the inputs
    `unwanted`. What acts does so where eager would run the backward that it is of."""
    graph = copy.deepcopy(backward.graph)
    inputs = graph.find_nodes(op="placeholder")
    first = len(inputs) - tangents
    gone, ignored = frozenset(missing), frozenset(unwanted)
    reach = reached_from(graph, [(node,) for node in inputs[first:]])
    zeros = {node for node, sources in reach.items() if sources and sources <= gone}
    kept = {node for node, why in acting(graph) if node not in zeros and (why is None or not why.inputs <= ignored)}
    for node in list(graph.nodes):
        if node.op == "output":
            node.args = (
                tuple(None if value in zeros or k in ignored else value for k, value in enumerate(node.args[0])),
            )
        elif node not in zeros and any(source in zeros for source in node.all_input_nodes):
            _without_zeros(graph, node, zeros)
    for node in reversed(list(graph.nodes)):
        # With all gradients, the call passes all values: inputs that nothing uses stay.
        if not node.users and node not in kept and node.op != "output" and (missing or node.op != "placeholder"):
            graph.erase_node(node)
    if LIES_ANEW in graph.output_node().meta:
        views_as_reshapes(graph)
    left = set(graph.find_nodes(op="placeholder"))
    return lazy_module(backward, graph), tuple(k for k, node in enumerate(inputs) if node in left)


def backward_groups(backward: torch.fx.GraphModule, tangents: int) -> tuple[BackwardGroup, ...]:
    """Which gradients meet where something saved is used, and what they need of it; empty where all of them do."""
    inputs = backward.graph.find_nodes(op="placeholder")
    first = len(inputs) - tangents
    position = {node: k for k, node in enumerate(inputs)}
    reach = reached_from(backward.graph, [(node,) for node in inputs[first:]])
    saved: dict[torch.fx.Node, set[int]] = {node: {position[node]} for node in inputs[:first]}
    groups = [({k}, set[int]()) for k in range(tangents)]
    for node in backward.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        used = set().union(*(saved.get(source, set()) for source in node.all_input_nodes))
        if not reach[node]:
            saved[node] = used
        elif used:
            met = [group for group in groups if not group[0].isdisjoint(reach[node])]
            groups = [group for group in groups if group not in met]
            groups.append((set().union(*(group[0] for group in met)), used.union(*(group[1] for group in met))))
    if len(groups) < 2:
        return ()
    return tuple(
        BackwardGroup(tuple(sorted(which)), tuple(sorted(what)))
        for which, what in sorted(groups, key=lambda g: min(g[0]))
    )


def reached_from(
    graph: torch.fx.Graph, tangents: Sequence[Sequence[torch.fx.Node]]
) -> dict[torch.fx.Node, frozenset[int]]:
    """Which of the `tangents` each node depends on. What acts depends on those that have the backward run which it is of."""
    reach = {node: frozenset((k,)) for k, nodes in enumerate(tangents) for node in nodes}
    runs_for = {node: why.tangents for node, why in acting(graph) if why is not None}
    for node in graph.nodes:
        if node.op != "output" and node not in reach:
            reach[node] = runs_for.get(node, frozenset[int]()).union(
                *(reach[source] for source in node.all_input_nodes)
            )
    return reach


def _without_zeros(graph: torch.fx.Graph, node: torch.fx.Node, zeros: set[torch.fx.Node]) -> None:
    """Let `node`, which something else reaches too, do with less: a sum is its other part, the rest is given zeros."""
    if node.target is aten.add.Tensor and not node.kwargs:
        parts = [part for part in node.args if part not in zeros]
        if len(parts) == 1 and isinstance(parts[0], torch.fx.Node) and _is_like(parts[0], node):
            lies_alike = parts[0].meta["val"].stride() == node.meta["val"].stride()
            if lies_alike or not _counts_where_it_lies(node):
                if not lies_alike:
                    # Eager sums up what follows in the order in which the part lies, and so does what is made of this graph.
                    graph.output_node().meta[LIES_ANEW] = True
                node.replace_all_uses_with(parts[0])
                return
    with graph.inserting_before(node):
        made = {source: _zero(graph, source.meta["val"]) for source in node.all_input_nodes if source in zeros}
    node.args = torch.fx.node.map_arg(node.args, lambda source: made.get(source, source))
    node.kwargs = torch.fx.node.map_arg(node.kwargs, lambda source: made.get(source, source))


_BY_STRIDES = frozenset(
    (aten.as_strided.default, aten._reshape_alias.default, aten.view_as_complex.default, aten.view.dtype)
)


def _counts_where_it_lies(node: torch.fx.Node) -> bool:
    """Whether what follows a node is right only for the strides that it had in the trace: a `contiguous()` which did nothing
    there is not in the graph."""
    seen, left = {node}, [*node.users]
    while left:
        user = left.pop()
        if user in seen or user.op == "output":
            continue
        seen.add(user)
        is_known = isinstance(user.target, OpOverload) and user.target.namespace == "aten"
        if user.target is not operator.getitem and (not is_known or user.target in _BY_STRIDES):
            return True
        left += user.users
    return False


def _is_like(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    a, b = one.meta["val"], other.meta["val"]
    return bool((a.shape, a.dtype) == (b.shape, b.dtype))


def _zero(graph: torch.fx.Graph, value: torch.Tensor) -> torch.fx.Node:
    """Zeros like `value`, its dimensions in the same order in memory."""
    order = sorted(range(value.dim()), key=value.stride, reverse=True)
    options: dict[str, Any] = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    made = graph.call_function(aten.full.default, ([value.size(d) for d in order], 0), options)
    made.meta["val"] = full = value.new_empty([value.size(d) for d in order])
    if order == sorted(order):
        return made
    back = [order.index(dimension) for dimension in range(value.dim())]
    turned = graph.call_function(aten.permute.default, (made, back))
    turned.meta["val"] = full.permute(back)
    return turned

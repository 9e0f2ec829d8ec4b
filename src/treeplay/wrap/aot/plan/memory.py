"""Whose memory the results and the saved values of a graph lie in, by what its operators promise.

New memory: nothing else shows it. Elsewhere: a saved value lies in the memory of an input or of a result, as eager saves a view
of that, and autograd counts for both what is written to one; a compiler gives two tensors that know nothing of each other.
Inner: nobody but the backward can reach it, and its place among the saved values is the last.

    forward   x, w ─▶ y, [x, h, w]         h is neither an argument nor a result, nor a view of one
                  ─▶ y, [x, w, h]          backward takes x, w, h

What can be reached from outside is watched for changes, and stays a tensor of its own. The rest can lie in one block.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.fx import base_node
from treeplay.torch_seam.operators import OpOverload
from treeplay.values.output import values_used
from treeplay.wrap.aot.calls.first_call import is_custom_operator
from treeplay.wrap.aot.plan.facts import CallPlan, SeenElsewhere
from treeplay.wrap.aot.plan.layouts import fake_value
from treeplay.wrap.aot.tracing.stashed import IS_STASHED


def fresh_values(graph: torch.fx.GraphModule) -> frozenset[int]:
    """Places of the results that operators of torch make anew: no views of an argument, whose history they would hold."""
    results: Any = graph.graph.output_node().args[0]
    return frozenset(at for at, value in enumerate(results) if isinstance(value, torch.fx.Node) and _is_fresh(value))


def _is_fresh(node: torch.fx.Node) -> bool:
    """Whether an operator of torch makes the value of a node anew, in memory of its own."""
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    if not isinstance(node.target, OpOverload) or is_custom_operator(node.target):
        return False
    return all(returned.alias_info is None for returned in node.target._schema.returns)


def seen_elsewhere(
    forward: torch.fx.GraphModule, plan: CallPlan, saved: Sequence[torch.fx.Node]
) -> tuple[SeenElsewhere, ...]:
    """Those of the saved values, each with what shows its memory too. What is made of other tensors is left out."""
    if plan.opened is not None or plan.tokens:
        return ()
    outputs: Any = forward.graph.output_node().args[0]
    inputs = forward.graph.find_nodes(op="placeholder")[: len(plan.inputs)]
    shown: dict[torch.fx.Node, tuple[int | None, int | None]] = {node: (at, None) for at, node in enumerate(inputs)}
    for value in sorted(values_used(plan.results)):
        if isinstance(outputs[value], torch.fx.Node):
            shown.setdefault(base_node(outputs[value]), (None, value))
    # An input itself comes back as the very tensor; a result may not, though it is saved under the same name.
    found = [
        (k, shown[base_node(node)]) for k, node in enumerate(saved) if base_node(node) in shown and node not in inputs
    ]
    return tuple(SeenElsewhere(k, *by) for k, by in found)


def inner_values_last(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, *, returned: int, unseen: Collection[int]
) -> int:
    """Have a forward save inner values behind all others, and a backward take them there; how many there are. The forward
    gives `returned` values before those that it saves, of which nobody sees the `unseen` ones.

    What is kept without noticing later writes stays where it is, at the very end.
    """
    output = forward.graph.output_node()
    outputs: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    placeholders = backward.graph.find_nodes(op="placeholder")
    stashed = (k for k, node in enumerate(outputs) if k >= returned and node.meta.get(IS_STASHED))
    end = next(stashed, len(outputs))
    saved = list(range(returned, end))
    shown = (node for k, node in enumerate(outputs[:returned]) if k not in unseen)
    seen = {base_node(node) for node in shown if isinstance(node, torch.fx.Node)}
    bound = _bound_to_storage(backward)
    inner = [k for k in saved if _is_inner(outputs[k], seen) and placeholders[k - returned] not in bound]
    order = [*range(returned), *(k for k in saved if k not in set(inner)), *inner, *range(end, len(outputs))]
    if order == list(range(len(outputs))):
        return len(inner)
    output.args = (tuple(outputs[k] for k in order),)
    if "desc" in output.meta:  # torch's word for what each output is
        told = output.meta["desc"]
        output.meta["desc"] = [*(told[k] for k in order), *told[len(outputs) :]]
    _put_in_order(backward, [placeholders[k - returned] for k in order[returned:]])
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()
    return len(inner)


def _is_inner(node: Any, seen: set[torch.fx.Node]) -> bool:
    """Whether a value lies in memory that an operator of torch made, and that no result shows."""
    if not isinstance(node, torch.fx.Node) or not isinstance(fake_value(node), torch.Tensor):
        return False
    base = base_node(node)
    return base.op == "call_function" and base not in seen and _is_fresh(base)


def _bound_to_storage(backward: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Inputs that cannot lie in a block: a gradient is a view of them, or they are viewed by their place in their storage."""
    gradients: Any = backward.graph.output_node().args[0]
    bound = {base_node(node) for node in gradients if isinstance(node, torch.fx.Node)}
    for node in backward.graph.nodes:
        if node.op == "call_function" and "as_strided" in str(node.target):
            bound.update(map(base_node, node.all_input_nodes))
    return bound


def _put_in_order(module: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node]) -> None:
    """Move placeholders that are the first ones of a graph into this order."""
    behind = next(node for node in module.graph.nodes if node not in set(nodes))
    for node in nodes:
        behind.prepend(node)

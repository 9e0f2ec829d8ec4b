"""Which of the values that a forward saves nobody but its backward can reach, and their place among the others: the last.

    forward   x, w ─▶ y, [x, h, w]         h is neither an argument nor a result, nor a view of one
                  ─▶ y, [x, w, h]          backward takes x, w, h

What can be reached from outside is watched for changes, and stays a tensor of its own. The rest can lie in one block.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.fx import base_of
from treeplay.wrap.aot.plan.fresh import is_fresh
from treeplay.wrap.aot.plan.layouts import fake_of
from treeplay.wrap.aot.tracing.stashed import IS_STASHED


def inner_values_last(
    forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, *, returned: int, unseen: Collection[int] = ()
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
    seen = {base_of(node) for node in shown if isinstance(node, torch.fx.Node)}
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
    if not isinstance(node, torch.fx.Node) or not isinstance(fake_of(node), torch.Tensor):
        return False
    base = base_of(node)
    return base.op == "call_function" and base not in seen and is_fresh(base)


def _bound_to_storage(backward: torch.fx.GraphModule) -> set[torch.fx.Node]:
    """Inputs that cannot lie in a block: a gradient is a view of them, or they are viewed by their place in their storage."""
    gradients: Any = backward.graph.output_node().args[0]
    bound = {base_of(node) for node in gradients if isinstance(node, torch.fx.Node)}
    for node in backward.graph.nodes:
        if node.op == "call_function" and "as_strided" in str(node.target):
            bound.update(map(base_of, node.all_input_nodes))
    return bound


def _put_in_order(module: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node]) -> None:
    """Move placeholders that are the first ones of a graph into this order."""
    behind = next(node for node in module.graph.nodes if node not in set(nodes))
    for node in nodes:
        behind.prepend(node)

"""Writes that a forward does itself at its end, where the call would do each of them after it.

    value0, value1, y = run(x, mean, count)           y = run(x, mean, count)     the graph ends with
    mean.copy_(value0); count.copy_(value1)     ▶                                 copy_(mean, …); copy_(count, …)

In training torch's trace leaves to the call what it writes. On a GPU the host pays for each write as for an operator (a net
with fifty batch norms has a hundred and fifty), and a recording makes a result for each; inside they are part of the graph.
What autograd has to see, what is saved as it was, and what a result shows is left to the call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam import tensors
from treeplay.torch_seam.aot import Traced
from treeplay.torch_seam.fx import base_node
from treeplay.values.output import inputs_used, values_used
from treeplay.wrap.aot.plan.facts import ArgumentWrite, CallPlan, LateWrite, NodePlan
from treeplay.wrap.aot.plan.layouts import fake_value
from treeplay.wrap.aot.plan.planning_node import values_with_tangents


def writes_of_forward(
    traced: Traced, forward: torch.fx.GraphModule, plan: CallPlan, late: Sequence[LateWrite]
) -> tuple[ArgumentWrite, ...]:
    """The writes of which it does not matter to the caller who does them."""
    if plan.opened is not None or plan.tokens:
        return ()
    outputs: list[Any] = list(forward.graph.output_node().args[0])  # type: ignore[arg-type]
    saved = [fake_value(node) for node in outputs[plan.returned_values :]]
    used = Counter(write.value for write in plan.writes if write.has_data)
    used.update([*values_used(plan.results), *values_with_tangents(traced.facts, plan)])
    others = {*inputs_used(plan.results), *(write.argument for write in late)}
    placeholders = forward.graph.find_nodes(op="placeholder")

    def may_be(write: ArgumentWrite) -> bool:
        if (
            not write.has_data
            or write.layout is not None
            or write.argument >= len(plan.arguments)
            or write.argument in others
        ):
            return False
        at, value = plan.inputs.index(write.argument), outputs[write.value]
        target = fake_value(placeholders[at])
        return (
            not traced.facts.input_info[at].requires_grad
            and used[write.value] == 1  # by this write alone
            and isinstance(value, torch.fx.Node)
            and base_node(value).op == "call_function"
            and _is_alike(target, fake_value(value))
            and is_costly(target)
            and not any(isinstance(one, torch.Tensor) and tensors.shares_storage(target, one) for one in saved)
        )

    return tuple(filter(may_be, plan.writes))


def write_inside(
    forward: torch.fx.GraphModule, plan: CallPlan, node: NodePlan, writes: Sequence[ArgumentWrite]
) -> tuple[CallPlan, NodePlan]:
    """Have the forward do `writes`, and say what is left for the call."""
    if not writes:
        return plan, node
    output = forward.graph.output_node()
    values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    placeholders = forward.graph.find_nodes(op="placeholder")
    for write in writes:
        target, value = placeholders[plan.inputs.index(write.argument)], values[write.value]
        with forward.graph.inserting_before(output):
            copy = forward.graph.call_function(torch.ops.aten.copy_.default, (target, value))
        copy.meta.update(value.meta, val=target.meta["val"])
        target.meta["is_untold"] = not write.is_versioned
        values[write.value] = None
    output.args = (tuple(values),)
    forward.graph.lint()
    forward.recompile()
    gone, touched = {write.value for write in writes}, {write.argument for write in writes if write.is_versioned}
    left = tuple(write for write in plan.writes if write not in writes)
    return (
        replace(plan, writes=left, touched=tuple(sorted({*plan.touched, *touched}))),
        replace(node, returned=tuple(value for value in node.returned if value not in gone)),
    )


def is_costly(target: torch.Tensor) -> bool:
    """Whether the call pays for a write more than the graph does. On the CPU a graph that writes nothing can be run again."""
    return target.device.type != "cpu"


def _is_alike(one: Any, other: Any) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
    )

"""Which saved values lie in the memory of an input or of a returned value, by the views in a forward graph.

Eager saves such a value as a view of that, and autograd counts for both what is written to one. A compiler gives two tensors
that know nothing of each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.fx import base_of
from treeplay.values.output import values_used
from treeplay.wrap.aot.plan.facts import CallPlan, SeenElsewhere


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
            shown.setdefault(base_of(outputs[value]), (None, value))
    # An input itself comes back as the very tensor; a result may not, though it is saved under the same name.
    found = [(k, shown[base_of(node)]) for k, node in enumerate(saved) if base_of(node) in shown and node not in inputs]
    return tuple(SeenElsewhere(k, *by) for k, by in found)

"""Which results of a graph are new memory, by what its operators promise."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam.operators import OpOverload
from treeplay.wrap.aot.calls.first_call import is_custom


def fresh_values(graph: torch.fx.GraphModule) -> frozenset[int]:
    """Places of the results that operators of torch make anew: no views of an argument, whose history they would hold."""
    results: Any = graph.graph.output_node().args[0]
    return frozenset(at for at, value in enumerate(results) if isinstance(value, torch.fx.Node) and is_fresh(value))


def is_fresh(node: torch.fx.Node) -> bool:
    """Whether an operator of torch makes the value of a node anew, in memory of its own."""
    if node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    if not isinstance(node.target, OpOverload) or is_custom(node.target):
        return False
    return all(returned.alias_info is None for returned in node.target._schema.returns)

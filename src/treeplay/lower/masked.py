"""Assignments of one number under a mask, as a choice between values.

x[x > 0] = 0.25     index_put(x, [mask], 0.25)     ─▶     where(mask, 0.25, x)

Inductor does the same later on, in place; if another operator has written into that memory before, by a kernel of its own, that
kernel then writes to the result.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.fx import Node

aten = torch.ops.aten

_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)


def fill_masked(graph: torch.fx.Graph) -> None:
    """Rewrite the assignments of a functional graph."""
    for node in [node for put in _PUTS for node in graph.find_nodes(op="call_function", target=put)]:
        if _is_filling(node):
            _choose(graph, node)


def _is_filling(node: Node) -> bool:
    indices: Any = node.args[1]
    value: Any = node.args[2]
    is_added = bool(node.args[3]) if len(node.args) > 3 else bool(node.kwargs.get("accumulate"))
    mask = indices[0]
    if is_added or not isinstance(mask, Node) or any(other is not None for other in indices[1:]):
        return False
    there, put = node.meta["val"], value.meta["val"]
    is_one = put.dim() == 0 and put.dtype == there.dtype and put.device == there.device
    return is_one and mask.meta["val"].dtype is torch.bool and mask.meta["val"].device == there.device


def _choose(graph: torch.fx.Graph, node: Node) -> None:
    source: Any = node.args[0]
    mask: Any = node.args[1][0]  # type: ignore[index]
    with graph.inserting_before(node):
        while mask.meta["val"].dim() < node.meta["val"].dim():
            wider = graph.call_function(aten.unsqueeze.default, (mask, -1))
            wider.meta["val"] = mask.meta["val"].unsqueeze(-1)
            mask = wider
    node.target, node.args, node.kwargs = aten.where.self, (mask, node.args[2], source), {}

"""Sums of which one addend is scaled, as a product and a sum.

c.add(a @ b, alpha=0.1)     add(c, mm(a, b), alpha=0.1)     ─▶     add(c, mul(mm(a, b), 0.1))

Inductor makes one operator of a product of matrices and a sum, and does not look at `alpha`: it would be 1.
"""

from __future__ import annotations

import torch
import torch.fx
from torch.fx import Node

from treeplay.graph_check import add_like

aten = torch.ops.aten

_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_PRODUCTS = frozenset((aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default))


def write_out_scales(graph: torch.fx.Graph) -> None:
    """Rewrite the scaled sums of a functional graph that a product of matrices enters."""
    for node in [node for target in _SUMS for node in graph.find_nodes(op="call_function", target=target)]:
        products = [arg for arg in node.args if isinstance(arg, Node) and arg.target in _PRODUCTS]
        if "alpha" in node.kwargs and products:
            _write_out(graph, node)


def _write_out(graph: torch.fx.Graph, node: Node) -> None:
    addend, alpha = node.args[1], node.kwargs["alpha"]
    if not isinstance(addend, Node):  # a number, which torch scales by itself
        return
    value, dtype = addend.meta["val"], node.meta["val"].dtype
    with graph.inserting_before(node):
        if value.dtype != dtype:  # it is scaled in the type of the sum
            addend = graph.call_function(torch.ops.prims.convert_element_type.default, (addend, dtype))
            addend.meta["val"] = value.to(dtype)
        scaled = add_like(graph, aten.mul.Tensor, (addend, alpha), addend)
    node.args, node.kwargs = (node.args[0], scaled), {}

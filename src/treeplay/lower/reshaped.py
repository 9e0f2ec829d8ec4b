"""Shapes that change in place, as views: the name goes on as the view, and what was there before keeps its shape.

    y = add(x, 1); t_(y); mul(y, 2); output y   ─▶   y = add(x, 1); v = t(y); mul(v, 2); output y

A result is the memory that an operator made, as that lies. A functional graph would give the tensor with its last shape. So
no lowering meets an operator that changes a shape in place.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.errors import LoweringError
from treeplay.graph_check import check_graph
from treeplay.torch_seam.schemas import is_inplace_view

aten = torch.ops.aten
_VIEWS = {
    aten.t_.default: aten.t.default,
    aten.transpose_.default: aten.transpose.int,
    aten.swapdims_.default: aten.transpose.int,
    aten.swapaxes_.default: aten.transpose.int,
    aten.squeeze_.default: aten.squeeze.default,
    aten.squeeze_.dim: aten.squeeze.dim,
    aten.squeeze_.dims: aten.squeeze.dims,
    aten.unsqueeze_.default: aten.unsqueeze.default,
    aten.as_strided_.default: aten.as_strided.default,
}


def with_reshapes_as_views(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A traced graph in which no operator changes a shape in place; the very graph if there is none. Raises `LoweringError`
    where one gives a tensor other memory, or more of it."""
    if not any(map(_reshapes, graph.nodes)):
        return graph
    views = copy.deepcopy(graph)
    place = {node: index for index, node in enumerate(views.nodes)}
    for node in list(filter(_reshapes, views.nodes)):
        target = node.args[0]
        with views.inserting_before(node):
            view = views.call_function(*_view(node, target))
        view.meta.update(node.meta)
        place[view] = place[node]
        target.replace_all_uses_with(view, lambda user, at=place[node]: place[user] > at and user.op != "output")
        node.replace_all_uses_with(view)
        views.erase_node(node)
    check_graph(views, "shapes that change in place became views")
    return views


def _reshapes(node: Node) -> bool:
    return node.op == "call_function" and hasattr(node.target, "tags") and is_inplace_view(node.target)


def _view(node: Node, target: Node) -> tuple[Any, ...]:
    """The operator that gives a view of the new shape, and its arguments."""
    if node.target in _VIEWS:
        return _VIEWS[node.target], node.args, node.kwargs
    before, after = target.meta["spec"], node.meta.get("spec")
    if after is None or after.nbytes > before.nbytes:
        where = f", at {node.meta['where']}" if node.meta.get("where") else ""
        raise LoweringError(f"{node.target} resizes a tensor in place{where}")
    return aten.as_strided.default, (target, after.shape, after.stride, node.meta["offset"])

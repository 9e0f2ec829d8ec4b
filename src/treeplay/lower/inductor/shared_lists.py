"""Operators over lists whose tensors share memory, taken apart: a functional graph would read all before it writes one."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.graph_check import check_graph
from treeplay.torch_seam.operators import OpOverload
from treeplay.values.lists import one_by_one, writes_shared


def with_shared_lists_apart(graph: torch.fx.Graph) -> torch.fx.Graph:
    """A traced graph in which such an operator is one operator for each position; the very graph if there is none."""
    if not any(map(_is_entangled, graph.nodes)):
        return graph
    apart = copy.deepcopy(graph)
    for node in [node for node in apart.nodes if _is_entangled(node)]:
        with apart.inserting_before(node):
            for args, kwargs in one_by_one(node.args, dict(node.kwargs)):
                apart.call_function(node.target, args, kwargs).meta.update(node.meta)
        apart.erase_node(node)
    check_graph(apart, "shared lists were taken apart")
    return apart


def _is_entangled(node: Node) -> bool:
    if not isinstance(node.target, OpOverload) or node.users:
        return False
    name = node.target._schema.name
    is_list = name.startswith("aten::_foreach_") and name.endswith("_")
    return is_list and writes_shared([*node.args, *node.kwargs.values()], _are_shared)


def _are_shared(one: Any, other: Any) -> bool:
    return isinstance(one, Node) and isinstance(other, Node) and one.meta.get("storage") == other.meta.get("storage")

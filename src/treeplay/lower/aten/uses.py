"""Questions about a graph and its layout that the emitter asks before it writes: what is written, what ends where. Pure."""

from __future__ import annotations

import operator
from collections import defaultdict

import torch.fx

from treeplay.lower.aten.storage import Home, Node, Storage, StoragePlan, maker_of, written_nodes
from treeplay.torch_seam.schemas import KEEPS_FOR_BACKWARD


def told_inputs(graph: torch.fx.Graph, layout: StoragePlan) -> list[Node]:
    """The inputs that an operator writes to, itself or through a view of it, so that autograd is told where eager runs: not of
    the running statistics of a batch norm, nor of what is written through `.data`."""
    roots: dict[Node, Node] = {}
    found: dict[Node, None] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            roots[node] = node
        found |= dict.fromkeys(roots[target] for target in written_nodes(node) if target in roots)
        storage = layout.of.get(node)
        if storage is not None and storage.home is Home.INPUT and node not in roots:
            bases = maker_of(node).all_input_nodes
            roots[node] = next(roots[item] for item in bases if layout.of.get(item) is storage)
    return [node for node in found if not node.meta.get("is_untold", False)]


def keeps_for_backward(node: Node) -> bool:
    """Whether somebody uses what the operator of a node gives only while gradients are on."""
    kept = KEEPS_FOR_BACKWARD.get(node.target)
    return kept is not None and any(part.args[1] == kept for part in node.users)


def runs_with_gradients(node: Node) -> bool:
    """Whether gradients are on while the operator of a node runs: where it keeps something for a backward, used or not, its
    library takes another kernel, whose last bits differ."""
    return keeps_for_backward(node) or bool(node.meta.get("is_keeping"))


def endings(graph: torch.fx.Graph, layout: StoragePlan) -> dict[Node, list[Storage | Node]]:
    """What is over after each node: storages that operators allocated, and results that were taken apart."""
    nodes = list(graph.nodes)
    found: dict[Node, list[Storage | Node]] = defaultdict(list)
    for last in {node.args[0]: node for node in nodes if node.target is operator.getitem}.values():
        found[last].append(last.args[0])
    for storage in layout.storages:
        if storage.home is Home.OWN:
            found[nodes[storage.last]].append(storage)
    return found

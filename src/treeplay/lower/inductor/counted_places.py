"""Places that a graph counts by itself, and adds to: they are read from memory.

y.index_add(0, torch.arange(n), x.t())     places = iota(n)     ─▶     places = apart(iota(n))

On a CPU, Inductor works on tiles where a transposed value is added to places. Where it knows them as a formula of the loop, the
tile's additions go elsewhere, also outside of the tensor. Places that are read from memory are right.
"""

from __future__ import annotations

import torch
import torch.fx
from torch.fx import Node

from treeplay.graph_check import add_like
from treeplay.lower.functional import apart
from treeplay.lower.masked import PUTS
from treeplay.torch_seam.schemas import leaves_of

aten = torch.ops.aten

_ADDS_AT = {
    **dict.fromkeys(PUTS, 1),
    aten._unsafe_masked_index_put_accumulate.default: 2,
    aten.scatter_add.default: 2,
    aten.scatter_reduce.two: 2,
}
"""Operators that may add to places, and which of their arguments says where."""


def read_places_from_memory(graph: torch.fx.Graph) -> None:
    """Rewrite the additions of a functional graph to places that none of its inputs says."""
    if not graph.find_nodes(op="call_function", target=torch.ops.prims.iota.default):
        return
    for op, at in _ADDS_AT.items():
        for node in graph.find_nodes(op="call_function", target=op):
            if op in PUTS and not any(node.args[3:4]):
                continue
            places = dict.fromkeys(one for one in leaves_of(node.args[at]) if isinstance(one, Node))
            for place in filter(_is_counted, places):
                with graph.inserting_before(node):
                    node.replace_input_with(place, add_like(graph, apart, (place,), place))


def _is_counted(place: Node) -> bool:
    """Whether no input says anything of the values."""
    waiting, seen = [place], {place}
    while waiting:
        node = waiting.pop()
        if node.op in ("placeholder", "get_attr"):
            return False
        more = [one for one in node.all_input_nodes if one not in seen]
        seen.update(more)
        waiting += more
    return True

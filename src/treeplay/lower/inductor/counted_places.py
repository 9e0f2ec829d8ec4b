"""Places that a graph counts by itself, and adds to: they are read from memory.

y.index_add(0, torch.arange(n), x.t())     places = iota(n)     ─▶     places = apart(iota(n))

On a CPU, Inductor works on tiles where a transposed value is added to places. Where it knows them as a formula of the loop, the
tile's additions go elsewhere, also outside of the tensor. Places that are read from memory are right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.lower.functional import apart

aten = torch.ops.aten

_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
_SCATTERS = (aten.scatter_add.default, aten.scatter_reduce.two)
_MASKED_PUT = aten._unsafe_masked_index_put_accumulate.default


def read_places_from_memory(graph: torch.fx.Graph) -> None:
    """Rewrite the additions of a functional graph to places that none of its inputs says."""
    if not graph.find_nodes(op="call_function", target=torch.ops.prims.iota.default):
        return
    for node in [
        node for op in (*_PUTS, *_SCATTERS, _MASKED_PUT) for node in graph.find_nodes(op="call_function", target=op)
    ]:
        for place in [place for place in _places(node) if _is_counted(place)]:
            with graph.inserting_before(node):
                kept = graph.call_function(apart, (place,))
            kept.meta["val"] = torch.empty_like(place.meta["val"])
            node.replace_input_with(place, kept)


def _places(node: Node) -> Iterator[Node]:
    """Where a node adds."""
    args: Any = node.args
    if node.target in _PUTS:
        if len(args) > 3 and args[3]:
            yield from {place: None for place in args[1] if place is not None}
    elif node.target in _SCATTERS:
        yield args[2]
    else:
        yield from {place: None for place in args[2] if place is not None}


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

"""Assignments of one number under a mask, as a choice between values.

x[x > 0] = 0.25     index_put(x, [mask], 0.25)     ─▶     where(mask, 0.25, x)

Inductor does the same later on, in place; if another operator has written into that memory before, by a kernel of its own, that
kernel then writes to the result. On a GPU, operators that run as they are would look up on the host where the mask holds, or
what the number is, and no capture takes that: torch itself makes the choice only for a number that the host has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.trace.numbers.scalar_ops import masked_fill

aten = torch.ops.aten
Tensor = torch.Tensor

PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
"""They assign to places, or add to them where their fourth argument says so."""


def fill_masked(graph: torch.fx.Graph) -> None:
    """Rewrite the assignments of a functional graph."""
    for node in [node for put in PUTS for node in graph.find_nodes(op="call_function", target=put)]:
        at = _mask_at(*torch.fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"]))
        if at is not None and node.args[2].meta["val"].dim() == 0:
            _choose(graph, node, at)


def _mask_at(args: Sequence[Any], kwargs: dict[str, Any]) -> int | None:
    """Which of the indices of an assignment is its mask, if it has no other index and assigns one number."""
    given = dict(zip(("self", "indices", "values", "accumulate"), args, strict=False)) | kwargs
    there, put, indices = given["self"], given["values"], given["indices"]
    used = [at for at, index in enumerate(indices) if index is not None]
    if given.get("accumulate") or len(used) != 1 or put.numel() != 1:
        return None
    mask = indices[used[0]]
    is_fitting = mask.dtype is torch.bool and mask.device == put.device == there.device and put.dtype == there.dtype
    return used[0] if is_fitting else None


def _choose(graph: torch.fx.Graph, node: Node, at: int) -> None:
    source: Any = node.args[0]
    mask: Any = node.args[1][at]  # type: ignore[index]
    with graph.inserting_before(node):
        while mask.meta["val"].dim() < node.meta["val"].dim() - at:
            wider = graph.call_function(aten.unsqueeze.default, (mask, -1))
            wider.meta["val"] = mask.meta["val"].unsqueeze(-1)
            mask = wider
    node.target, node.args, node.kwargs = aten.where.self, (mask, node.args[2], source), {}


def _put(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*args: Any, **kwargs: Any) -> Tensor:
        at = _mask_at(args, kwargs)
        if at is None:
            return op(*args, **kwargs)
        there, mask, value = args[0], args[1][at], args[2]
        return masked_fill(there, mask[(..., *(None,) * (there.dim() - at - mask.dim()))], value.reshape(()))

    return run


def _put_in_place(op: Callable[..., Tensor]) -> Callable[..., Tensor]:
    choose = _put(op)

    def run(there: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        made = choose(there, *args, **kwargs)
        return there if made is there else there.copy_(made)

    return run


def _fill_in_place(there: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    return there.copy_(masked_fill(there, mask, value))


ON_A_STREAM: dict[Any, Callable[..., Tensor]] = {
    **{op: _put(op) for op in PUTS},
    aten.index_put_.default: _put_in_place(aten.index_put_.default),
    aten.masked_fill.Tensor: masked_fill,
    aten.masked_fill_.Tensor: _fill_in_place,
}
"""What such assignments are where a stream is captured, by operator."""

"""Minus zero, where a compiler would make zero of it: other operators in the places of those that do.

x.remainder(2)     x - floor(x / 2) * 2     0 for -0, and coarse where x / 2 is large     ─▶   fmod, and 2 added to some
a + b, complex     (a + 0) + (b + 0)        0 for -0                                      ─▶   as it is
-x, on a GPU       0 - x                    0 for 0, eager has -0                         ─▶   x * -1
x * -0.0, there    x * 0                    Triton writes any constant that is 0 as 0     ─▶   x * (0 * -1)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.graph_check import add_like
from treeplay.torch_seam.operators import OpOverload

aten = torch.ops.aten

_NEGATIONS = frozenset({aten.neg.default, aten._neg_view.default})
_CONSTANTS = {aten.full.default: 1, aten.scalar_tensor.default: 0}
"""What makes a tensor of one number, and where among its arguments that is."""


def _remainder(dividend: Any, divisor: Any) -> Any:
    if not torch.result_type(dividend, divisor).is_floating_point:
        return NotImplemented
    rest = torch.fmod(dividend, divisor)
    return torch.where(has_other_sign(rest, divisor), rest + divisor, rest)


def has_other_sign(rest: Any, divisor: Any) -> Any:
    """Where a rest is not zero, and has another sign than what was divided by.

    It compares no comparison with True, which Inductor cannot do of the elements of `arange`, since it knows them."""
    if isinstance(divisor, torch.Tensor):
        return (rest != 0) & ((rest < 0) ^ (divisor < 0))
    return rest > 0 if divisor < 0 else rest < 0


def with_signs(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Inductor's decompositions, but for those that lose a sign."""
    kept = {op: parts for op, parts in table.items() if op not in (aten.add.Tensor, aten.add.Scalar)}
    return kept | {aten.remainder.Tensor: _remainder, aten.remainder.Scalar: _remainder}


def keep_signs(graph: torch.fx.Graph) -> None:
    """Write negations and negative zeros of a functional graph, where they are computed on a GPU, as products."""
    for node in list(graph.nodes):
        value = node.meta.get("val")
        if node.op != "call_function" or not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            continue
        if not value.dtype.is_floating_point:
            continue
        if node.target in _NEGATIONS:
            node.target, node.args = aten.mul.Tensor, (node.args[0], -1.0)
        elif any(map(_is_negative_zero, node.args)):
            _keep_zero(graph, node)


def _keep_zero(graph: torch.fx.Graph, node: Node) -> None:
    if node.target in _CONSTANTS:
        node.update_arg(_CONSTANTS[node.target], 0.0)
        _negate_result(graph, node, aten.copysign.Scalar)
    elif node.target is aten.constant_pad_nd.default:
        source: Any = node.args[0]
        with graph.inserting_before(node):
            node.update_arg(0, _negated(graph, source, aten.mul.Tensor))
        node.update_arg(2, 0.0)
        _negate_result(graph, node, aten.mul.Tensor)
    elif isinstance(node.target, OpOverload):
        for at, argument in enumerate(node.target._schema.arguments[: len(node.args)]):
            # Numbers that are no tensors to the operator are bounds, exponents and the like.
            if _is_negative_zero(node.args[at]) and str(argument.type) == "Tensor":
                node.update_arg(at, _negative_zero(graph, node))


def _is_negative_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0 and str(value) == "-0.0"


def _negative_zero(graph: torch.fx.Graph, before: Node) -> Node:
    value = before.meta["val"].new_empty(())
    with graph.inserting_before(before):
        options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        zero = graph.call_function(aten.full.default, ([], 0.0), options)
        zero.meta["val"] = value
        return _negated(graph, zero, aten.copysign.Scalar)


def _negated(graph: torch.fx.Graph, node: Node, by: Any) -> Node:
    """The value of `node` with another sign: times -1, or, for zeros that a compiler knows, with the sign of -1. It would
    compute the product itself, and write it as a zero."""
    return add_like(graph, by, (node, -1.0), node)


def _negate_result(graph: torch.fx.Graph, node: Node, by: Any) -> None:
    with graph.inserting_after(node):
        made = _negated(graph, node, by)
    node.replace_all_uses_with(made, lambda user: user is not made)

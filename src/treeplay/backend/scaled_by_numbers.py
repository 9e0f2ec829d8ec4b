"""Operators that take a number which a tensor may not stand for, written out in operators that take tensors.

add(x, y, alpha=n)                  ▶   add(x, mul(y, t))              t: the number as a 0-dim tensor
_foreach_addcdiv([x], [y], [z], n)  ▶   _foreach_add([x], _foreach_mul(_foreach_div([y], [z]), t))

This is what optimizers do with a learning rate that follows a schedule.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

CallOperator = Callable[..., Node]  # of an operator with arguments, at a place in a graph
WrittenOut = Callable[..., Any]  # (call, *arguments of the operator, the last of them as a tensor)


def _plus_scaled(call: CallOperator, x: Any, y: Any, t: Any) -> Node:
    return call(aten.add.Tensor, x, call(aten.mul.Tensor, y, t))


def _minus_scaled(call: CallOperator, x: Any, y: Any, t: Any) -> Node:
    return call(aten.sub.Tensor, x, call(aten.mul.Tensor, y, t))


def _all_plus_scaled(call: CallOperator, x: Any, y: Any, t: Any) -> Node:
    return call(aten._foreach_add.List, x, _list(call, aten._foreach_mul.Tensor, y, t))


def _all_minus_scaled(call: CallOperator, x: Any, y: Any, t: Any) -> Node:
    return call(aten._foreach_sub.List, x, _list(call, aten._foreach_mul.Tensor, y, t))


def _list(call: CallOperator, op: Any, *args: Any) -> list[Node]:
    several = call(op, *args)
    return [call(operator.getitem, several, index) for index in range(len(several.meta["val"]))]


def _all_plus_both(op: Any) -> WrittenOut:
    return lambda call, x, y, z, t: _all_plus_scaled(call, x, _list(call, op, y, z), t)


def _one_by_one(op: Any) -> WrittenOut:
    return lambda call, x, t: [call(op, item, t) for item in x]


_RULES: dict[Any, tuple[int | str, WrittenOut]] = {
    aten.add.Tensor: ("alpha", _plus_scaled),
    aten.sub.Tensor: ("alpha", _minus_scaled),
    aten.addcdiv.default: ("value", lambda call, x, y, z, t: _plus_scaled(call, x, call(aten.div.Tensor, y, z), t)),
    aten.addcmul.default: ("value", lambda call, x, y, z, t: _plus_scaled(call, x, call(aten.mul.Tensor, y, z), t)),
    aten.lerp.Scalar: (2, lambda call, x, y, t: _plus_scaled(call, x, call(aten.sub.Tensor, y, x), t)),
    aten.pow.Tensor_Scalar: (1, lambda call, x, t: call(aten.pow.Tensor_Tensor, x, t)),
    aten.pow.Scalar: (0, lambda call, x, t: call(aten.pow.Tensor_Tensor, t, x)),
    aten.full.default: (
        1,
        lambda call, size, t, **made: call(aten.mul.Tensor, call(aten.full.default, size, 1, **made), t),
    ),
    aten._foreach_add.List: ("alpha", _all_plus_scaled),
    aten._foreach_sub.List: ("alpha", _all_minus_scaled),
    aten._foreach_add.Scalar: (1, lambda call, x, t: call(aten._foreach_add.Tensor, x, t)),
    aten._foreach_mul.Scalar: (1, lambda call, x, t: call(aten._foreach_mul.Tensor, x, t)),
    aten._foreach_div.Scalar: (1, lambda call, x, t: call(aten._foreach_div.Tensor, x, t)),
    aten._foreach_addcdiv.Scalar: (3, _all_plus_both(aten._foreach_div.List)),
    aten._foreach_addcmul.Scalar: (3, _all_plus_both(aten._foreach_mul.List)),
    aten._foreach_lerp.Scalar: (
        2,
        lambda call, x, y, t: _all_plus_scaled(call, x, _list(call, aten._foreach_sub.List, y, x), t),
    ),
    aten._foreach_clamp_min.Scalar: (1, _one_by_one(aten.maximum.default)),
    aten._foreach_clamp_max.Scalar: (1, _one_by_one(aten.minimum.default)),
    aten._foreach_maximum.Scalar: (1, _one_by_one(aten.maximum.default)),
    aten._foreach_minimum.Scalar: (1, _one_by_one(aten.minimum.default)),
    aten._foreach_pow.ScalarAndTensor: (0, lambda call, x, t: [call(aten.pow.Tensor_Tensor, t, item) for item in x]),
}
"""Where each operator has its number, and what it is with a tensor, which comes last."""
_BY_NAME: dict[str, tuple[int | str, WrittenOut]] = {  # of operators that Inductor adds
    "prims.fma.default": (1, lambda call, x, z, t: _plus_scaled(call, z, x, t)),
}


def _rule_of(target: Any) -> tuple[int | str, WrittenOut] | None:
    return _RULES.get(target) or _BY_NAME.get(str(target))


def number_in(node: Node) -> Any:
    """The number that an operator takes in a place where a tensor may not stand; None if it has no such place."""
    rule = _rule_of(node.target)
    if rule is None:
        return None
    at = rule[0]
    if isinstance(at, str):
        return node.kwargs.get(at) if set(node.kwargs) == {at} else None
    return node.args[at] if at < len(node.args) else None


def write_out(node: Node, call: CallOperator, tensor: Node) -> None:
    """Replace `node` by operators that take `tensor` for its number."""
    found = _rule_of(node.target)
    assert found is not None
    at, rule = found
    others = [part for index, part in enumerate(node.args) if index != at]
    made = rule(call, *others, tensor, **{name: value for name, value in node.kwargs.items() if name != at})
    if isinstance(made, list):
        for item in list(node.users):
            item.replace_all_uses_with(made[item.args[1]])  # type: ignore[index]
            node.graph.erase_node(item)
    else:
        node.replace_all_uses_with(made)
    node.graph.erase_node(node)

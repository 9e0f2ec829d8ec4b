"""What a compiler computes only where it is read, and so perhaps after an input that it is computed from was overwritten.

double = x * 2                       double is no memory, but `x * 2` in each kernel that reads it
_foreach_add_([x, y], [y, double])   y gets what x has become
x.copy_(x[[1, 0]].view(2, 3))        a view of what is no memory: each row may be read when the other was written

And what it computes twice: for an operator over lists, whose kernel stores nothing else, and for an input that becomes it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch
from torch.fx import Node

from treeplay.lower.foreach import SAME_BY_ONE
from treeplay.lower.functional import apart, computed_once, fresh
from treeplay.torch_seam.operators import OpOverload

aten = torch.ops.aten

_AT_ONCE = frozenset(
    (
        *(apart, computed_once, fresh),
        *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
        *(aten.convolution.default, aten.convolution_backward.default),
    )
)
_KEEP_ORDER = frozenset(
    (
        *(aten.view.default, aten.reshape.default, aten._unsafe_view.default, aten.alias.default),
        *(aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims),
    )
)
"""Views that have the elements of their argument in its order."""
_LEAST_REDUCED = 8
"""Reductions of fewer elements are written out in the kernels that read them."""


def is_in_place_list(target: Any) -> bool:
    """Whether an operator is one over lists that a compiler may let write into the first of them."""
    if not isinstance(target, OpOverload):
        return False
    name = target._schema.name.removeprefix("aten::")
    # Not powers of one number by a list.
    is_list = isinstance(target._schema.arguments[0].type, torch.ListType)
    return is_list and name.startswith("_foreach_") and hasattr(aten, f"{name}_")


def reads_elsewhere(source: Node, target: Node, overwritten: Set[Any]) -> bool:
    """Whether a value, computed when it is written to `target`, would read what one of `overwritten` holds elsewhere than at
    the element of `target` that is written."""
    waiting = [(source, _shape(source) == _shape(target))]
    seen = set(waiting)
    # It grows while it is walked.
    for node, is_same in waiting:
        if node in overwritten and not (is_same and node is target):
            return True
        if _is_computed_at_once(node):
            continue
        for read, is_same_there in _read_by(node):
            item = (read, is_same and is_same_there)
            if item not in seen:
                seen.add(item)
                waiting.append(item)
    return False


def compute_once(graph: torch.fx.Graph, copies: Iterable[Node]) -> None:
    """Have the kernel of an operator over lists store what inputs become (`copies`), where it reads just that.

    Of what it reads it would compute each for itself, and others would read again all that it is computed from: the mean of
    squares of which an optimizer takes the root. Only an operator over lists becomes one kernel with the next one.
    """
    become = {node.args[1] for node in copies}
    order = {node: at for at, node in enumerate(graph.nodes)}
    for node in [node for node in order if is_in_place_list(node.target)]:
        for values in [item for item in node.args if isinstance(item, list)]:
            if become.issuperset(values) and all(map(_is_computed_late, values)):
                later = {user for user, at in order.items() if at >= order[node]}
                _become_a_list(graph, values, before=node, later=later)


def _is_computed_late(node: Node) -> bool:
    return is_pointwise(node) and bool(node.meta["val"].dtype.is_floating_point)


def _become_a_list(graph: torch.fx.Graph, values: list[Any], *, before: Node, later: Set[Node]) -> None:
    with graph.inserting_before(before):
        made = graph.call_function(SAME_BY_ONE, (list(values), 1))
        made.meta["val"] = [value.meta["val"] for value in values]
        for at, value in enumerate(values):
            one = graph.call_function(operator.getitem, (made, at))
            one.meta.update(value.meta)
            value.replace_all_uses_with(one, later.__contains__)


def _read_by(node: Node) -> Iterator[tuple[Node, bool]]:
    """What a value is computed from, and whether each element of it from the same element there."""
    sources: Any = node.all_input_nodes
    by_element = is_pointwise(node)
    if node.target is operator.getitem and is_in_place_list(sources[0].target):
        at: Any = node.args[1]
        lists = [item[at] for item in sources[0].args if isinstance(item, (list, tuple))]
        sources, by_element = [item for item in lists if isinstance(item, Node)], True
    for source in sources:
        yield source, node.target in _KEEP_ORDER or (by_element and _shape(source) == _shape(node))


def is_pointwise(node: Node) -> bool:
    """Whether an operator works element by element."""
    return torch.Tag.pointwise in getattr(node.target, "tags", ())


def _shape(node: Node) -> Any:
    return getattr(node.meta.get("val"), "shape", None)


def _is_computed_at_once(node: Node) -> bool:
    if torch.Tag.reduction not in getattr(node.target, "tags", ()):
        return node.target in _AT_ONCE
    before, after = node.all_input_nodes[0].meta["val"], node.meta["val"]
    return isinstance(after, torch.Tensor) and bool(before.numel() >= _LEAST_REDUCED * max(1, after.numel()))

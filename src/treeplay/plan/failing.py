"""Which operators of a graph fail on some values, and what their failure leaves behind. Pure.

    embedding(weight, tokens)       fails on an index that is out of range
    _linalg_check_errors(info)      fails where a factorization did; has no result that anybody could use
    bernoulli(p)                    fails on what is no probability; compiled code draws all the same

A call whose operators fail must end as the program itself would: with its exception, and with what it had written by then. So
a replay that fails is taken back, and the program runs eagerly. Nothing has to be kept for that where no input was written.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.lower.aten.storage import storages_written
from treeplay.lower.inductor.checked import CONDITIONS
from treeplay.torch_seam.operators import HigherOrderOperator, OpOverload, operator_name
from treeplay.torch_seam.schemas import is_random
from treeplay.trace.signature.prune import acts
from treeplay.values.failing import InRange, ToKeep

Node = torch.fx.Node
aten = torch.ops.aten
MOST_BYTES = 2**24
"""What each call of a compiled graph may copy so that it can be taken back; a larger one runs as operators in order."""

_CHECKING = frozenset({*CONDITIONS, aten.bernoulli.Tensor})
FAILING = frozenset(
    (
        *("bernoulli_", "binary_cross_entropy", "multinomial", "poisson", "binomial", "repeat_interleave", "histc"),
        *("segment_reduce", "_ctc_loss"),
        *("multi_margin_loss", "multilabel_margin_loss_forward", "max_unpool2d", "max_unpool3d"),
    )
)
_DIVISIONS = frozenset(("div", "div_", "floor_divide", "floor_divide_", "remainder", "remainder_", "fmod", "fmod_"))
_FILLED = frozenset(f"{name}{end}" for name in ("zeros", "ones", "full") for end in ("", "_like")) | {
    "new_zeros",
    "new_full",
}
_KEEP_VALUES = frozenset(
    (
        *("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "t", "transpose", "permute", "expand", "detach"),
        *("alias", "clone", "select", "slice", "_to_copy", "unfold", "split", "chunk", "unbind", "contiguous"),
    )
)
"""Operators whose results hold none but values of their first argument."""


_POSITIONS = {"argmax": 1, "argmin": 1, "argsort": 1, "sort": 1, "max": 1, "min": 1, "topk": 2}
"""Operators that give positions of elements, and where among their arguments the dimension is."""


def first_uncompiled(graph: torch.fx.Graph) -> Node | None:
    """The first operator that compiled code would leave out, or whose check it would: None if there is none."""
    nodes = list(graph.nodes)
    found = next((node for node in nodes if acts(node)), None)
    if found is not None or not any(map(_is_table, nodes)):
        return found
    varying, written = _varying(nodes), storages_written(nodes)
    return next((node for node in nodes if _is_table(node) and _ranges(node, written, varying) != ()), None)


def to_keep(graph: torch.fx.Graph, *, is_in_order: bool) -> ToKeep | None:
    """What a call has to keep; None if no operator can fail.

    `is_in_order`: operators run in the graph's order, so what comes after the last one that can fail needs no thought. That one
    may have written a part when it fails."""
    nodes = list(graph.nodes)
    varying = _varying(nodes)
    everywhere = storages_written(nodes)
    asked = [(at, _ranges(node, everywhere, varying)) for at, node in enumerate(nodes) if can_fail(node)]
    known = {at: ranges for at, ranges in asked if ranges is None or ranges}
    if not known:
        return None
    reached = nodes[: max(known) + 1] if is_in_order else nodes
    places = storages_written(reached)
    written = tuple(
        _position(node)
        for node in nodes
        if node.op == "placeholder" and "spec" in node.meta and node.meta["storage"] in places
    )
    draws = any(is_random(node.target) for node in reached)
    unless = dict.fromkeys(item for ranges in known.values() if ranges for item in ranges)
    return ToKeep(written, draws, tuple(unless) if None not in known.values() else ())


def bytes_to_keep(graph: torch.fx.Graph, keep: ToKeep) -> int:
    """How much a call copies that keeps all of it."""
    written = set(keep.written)
    nodes = (node for node in graph.nodes if node.op == "placeholder" and "spec" in node.meta)
    return sum(node.meta["spec"].nbytes for node in nodes if _position(node) in written)


def can_fail(node: Node) -> bool:
    """Whether an operator fails on some values of its arguments."""
    op = called(node)
    if op is None:
        return False
    name = operator_name(op)
    if op.namespace != "aten" or op in _CHECKING or name in FAILING or not op._schema.returns:
        return op.namespace not in ("prims", "prim", "profiler")
    if name.startswith(("linalg_", "_linalg_")):
        return True
    if name in _DIVISIONS:
        spec, divisor = node.meta.get("spec"), node.args[1]
        if isinstance(divisor, (int, float)) and divisor != 0:
            return False
        return spec is not None and not (spec.dtype.is_floating_point or spec.dtype.is_complex)
    if name == "searchsorted":
        return node.kwargs.get("sorter") is not None
    return name in _INDICES


def called(node: Node) -> OpOverload | None:
    """The operator that a node calls, be it one that a trace keeps in order with others."""
    target: Any = node.target
    if isinstance(target, HigherOrderOperator) and target.__name__ == "with_effects":
        target = node.args[1]
    return target if isinstance(target, OpOverload) else None


def _is_table(node: Node) -> bool:
    """Whether one number is scattered over another. Inductor compares positions instead, and looks at no range."""
    if node.target not in (aten.scatter.value, aten.scatter_.value):
        return False
    filled: Any = node.args[0]
    while operator_name(filled.target) in _KEEP_VALUES:
        filled = filled.args[0]
    return operator_name(filled.target) in _FILLED


def _position(node: Node) -> int:
    known = node.meta.get("input")
    return int(node.name.removeprefix("in")) if known is None else known


# --- indices ------------------------------------------------------------------------------------------------


def _varying(nodes: Sequence[Node]) -> set[Any]:
    """The storages whose values may be other ones in another call, and the nodes without a storage of which that holds. What is
    made of plain numbers alone, such as positions, is the same in each, and did not fail in the first."""
    found: set[Any] = {node.meta.get("storage", node) for node in nodes if node.op == "placeholder"}
    count = -1
    while count != len(found):  # what is written late may be read early, through a view
        count = len(found)
        for node in nodes:
            if node.op == "call_function" and (_varies(node, found) or is_random(node.target)):
                found.add(node.meta.get("storage", node))
                found |= storages_written([node])
    return found


def _varies(node: Node, varying: Collection[Any]) -> bool:
    return any(argument.meta.get("storage", argument) in varying for argument in node.all_input_nodes)


def _ranges(node: Node, written: Collection[int], varying: Collection[Any]) -> tuple[InRange, ...] | None:
    """What has to hold of inputs for an operator not to fail; None if that is not known from inputs."""
    if not _varies(node, varying):
        return ()
    if operator_name(called(node)) not in _INDICES:
        return None
    ranges: list[InRange] = []
    for index, size, ignored in indices_of(node):
        if isinstance(index, Node) and index.meta.get("storage", index) not in varying:
            continue
        root = _root(index, written)
        if root is None:
            return None
        if root.op == "placeholder":
            ranges.append(InRange(_position(root), size, ignored))
        elif _bound(root) > size:
            return None
    return tuple(ranges)


def _root(node: Any, written: Collection[int]) -> Node | None:
    """What a tensor of indices takes its values from; None for a mask, and where an operator writes on the way."""
    while isinstance(node, Node) and isinstance(node.target, OpOverload):
        if node.meta.get("storage") in written:
            return None
        if operator_name(node.target) not in _KEEP_VALUES or not isinstance(node.args[0], Node):
            break
        node = node.args[0]
    spec = node.meta.get("spec") if isinstance(node, Node) and node.meta.get("storage") not in written else None
    return node if spec is not None and spec.dtype in (torch.int64, torch.int32) else None


def _bound(node: Node) -> float:
    """A number that all indices which an operator gives are below; infinity if that is not known."""
    is_second = node.target is operator.getitem and node.args[1] == 1
    maker: Any = node.args[0] if is_second else node
    name = operator_name(maker.target)
    # The positions are the whole result of `argmax` and the like, and the second of the results of `sort`, `max` and `topk`.
    at = _POSITIONS.get(name) if is_second is not name.startswith("arg") else None
    if at is None:
        return math.inf
    shape, dimension = _shape(maker.args[0]), maker.args[at] if len(maker.args) > at else None
    if dimension is None:
        return math.prod(shape)
    return shape[dimension] if shape else 1


Indices = Iterator[tuple[Any, int, int | None]]


def indices_of(node: Node) -> Indices:
    """The indices that an operator takes, how many things each of them chooses from, and the one that is ignored."""
    found = _INDICES.get(operator_name(called(node)))
    return found(node) if found is not None else iter(())


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(node.meta["spec"].shape)


def _of_each(node: Node) -> Indices:
    indices: Any = node.args[1]
    sizes = zip(indices, _shape(node.args[0]), strict=False)
    yield from ((index, size, None) for index, size in sizes if index is not None)


def _of_rows(node: Node) -> Indices:
    yield node.args[1], _shape(node.args[0])[0], None


def _of_bags(node: Node) -> Indices:
    count: Any = _shape(node.args[1])[0]
    yield from ((node.args[1], _shape(node.args[0])[0], None), (node.args[2], count + 1, None))


def _along(node: Node) -> Indices:
    shape: Any = _shape(node.args[0])
    yield node.args[2], shape[node.args[1]] if shape else 1, None


def _of_all(node: Node) -> Indices:
    yield node.args[1], math.prod(_shape(node.args[0])), None


def _of_classes(node: Node) -> Indices:
    shape, ignored = _shape(node.args[0]), node.args[4] if len(node.args) > 4 else -100
    yield node.args[1], shape[1 if len(shape) > 1 else 0], ignored  # type: ignore[misc]


_ALONG = (
    *("gather", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
    *("scatter", "scatter_add", "scatter_reduce"),
)
_INDICES: dict[str, Callable[[Node], Indices]] = {
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"), _of_each),
    "embedding": _of_rows,
    **dict.fromkeys(("_embedding_bag", "_embedding_bag_forward_only"), _of_bags),
    **dict.fromkeys((*_ALONG, *(f"{name}_" for name in _ALONG)), _along),
    **dict.fromkeys(("take", "put", "put_"), _of_all),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _of_classes),
}

"""Operators that end the use of a GPU on values that they do not take, made harmless behind a check that is answered later.

    _assert_async.msg(valid)                          the answer is read after the launch, so what follows runs in any case
    gather(x, 1, index)     ─▶  gather(x, 1, where(holds, index, 0)),  holds = all(0 <= index < n): one more flag of the answer

Where a flag is false the call is taken back, whatever was computed, and the program itself runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.lower.aten.memory import empty_like_spec
from treeplay.lower.aten.storage import storages_written
from treeplay.plan.failing import FAILING, indices_of
from treeplay.torch_seam.operators import OpOverload, operator_name
from treeplay.trace.signature.prune import TORCHS_OWN
from treeplay.values.spec import TensorSpec

Node = torch.fx.Node
aten = torch.ops.aten
_FROM_THE_END = frozenset(
    ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "take", "put", "put_")
)
"""Operators that count negative indices from the end."""
_TRUSTING: dict[Any, int] = {
    aten.nll_loss_backward.default: 2,
    aten.nll_loss2d_backward.default: 2,
    aten.embedding_dense_backward.default: 1,
}
"""Operators that have no word for indices out of range, since one before has looked at them; and which argument that is."""


def made_harmless(graph: torch.fx.Graph, checks: Sequence[Node]) -> tuple[list[Node], Node | None]:
    """Flags that say whether values suit the operators behind the first of `checks`, which are changed to run in any case; and
    an operator of which this cannot be said, if there is one."""
    flags: list[Node] = []
    safe: set[Node] = set()
    nodes = list(graph.nodes)
    written = storages_written(nodes)
    for node in nodes[nodes.index(checks[0]) + 1 :]:
        if node.op != "call_function" or node in checks:
            continue
        if node.target in _TRUSTING and node.args[_TRUSTING[node.target]] not in safe:
            return flags, node
        suspects = list(_suspects(node))
        if not suspects and _is_a_danger(node):
            return flags, node
        for value, condition, harmless in suspects:
            if value in safe:
                continue
            # It may hold other values when it is used than when it was checked.
            if value.meta["storage"] in written:
                return flags, node
            with graph.inserting_before(node):
                write = NodeWriter(graph, value.meta["spec"].device)
                holds = write(aten.all.default, condition(write, value))
                instead = write(aten.where.self, holds, value, write(aten.full_like.default, value, harmless))
            flags.append(holds)
            safe.add(instead)
            _use(instead, value, nodes[nodes.index(node) :])
    return flags, None


def _use(instead: Node, value: Node, nodes: Sequence[Node]) -> None:
    """Have these nodes read another value. What is returned stays what it is."""
    for node in nodes:
        if node.op != "output":
            node.replace_input_with(value, instead)


MakesCondition = Callable[["NodeWriter", Node], Node]


def _suspects(node: Node) -> Iterator[tuple[Node, MakesCondition, Any]]:
    """The arguments of an operator that it may not take, with what has to hold of each and a value that it takes."""
    name, first = operator_name(node.target), node.args[0]
    if name == "multinomial" and isinstance(first, Node):
        yield first, _are_weights, 1.0
    elif name in ("bernoulli", "binary_cross_entropy") and isinstance(first, Node):
        yield first, _are_shares, 0.5
    else:
        for index, size, ignored in indices_of(node):
            low = -size if name in _FROM_THE_END else 0
            if isinstance(index, Node) and index.meta["spec"].dtype in (torch.int64, torch.int32):
                yield index, _within(low, size, ignored), 0


def _is_a_danger(node: Node) -> bool:
    """Whether kernels of an operator may assert what only its name tells, or nobody knows what it does. Factorizations and
    divisions fail on the host, if at all, as does the count of a mask."""
    if not isinstance(node.target, OpOverload):
        return False
    return operator_name(node.target) in (*FAILING, "_assert_async") or node.target.namespace not in TORCHS_OWN


class NodeWriter:
    """Adds operators to a graph, with what lowerings read of each."""

    def __init__(self, graph: torch.fx.Graph, device: torch.device) -> None:
        self._graph, self._device = graph, device

    def __call__(self, op: Any, *args: Any) -> Node:
        """An operator on nodes and numbers."""
        node = self._graph.call_function(op, args)
        found: torch.Tensor = op(*torch.fx.node.map_arg(args, lambda node: empty_like_spec(node.meta["spec"], "meta")))
        spec = TensorSpec(tuple(found.shape), tuple(found.stride()), found.dtype, self._device)
        # A storage is only asked who shares it: a new object is shared with nobody.
        node.meta.update(spec=spec, storage=object(), offset=0)
        return node

    def between(self, values: Node, low: tuple[Any, float], high: tuple[Any, float]) -> Node:
        """Where values are on the right side of both ends."""
        return self(aten.logical_and.default, *(self(op, values, end) for op, end in (low, high)))


def _within(low: int, size: int, ignored: int | None) -> MakesCondition:
    def condition(write: NodeWriter, index: Node) -> Node:
        within = write.between(index, (aten.ge.Scalar, low), (aten.lt.Scalar, size))
        if ignored is None:
            return within
        return write(aten.logical_or.default, within, write(aten.eq.Scalar, index, ignored))

    return condition


def _are_shares(write: NodeWriter, values: Node) -> Node:
    """From 0 to 1, and numbers."""
    return write.between(values, (aten.ge.Scalar, 0.0), (aten.le.Scalar, 1.0))


def _are_weights(write: NodeWriter, values: Node) -> Node:
    """Finite, not negative, and in each row some that are not zero."""
    limit = torch.finfo(values.meta["spec"].dtype).max
    each = write(aten.all.dim, write.between(values, (aten.ge.Scalar, 0.0), (aten.le.Scalar, limit)), -1)
    some = write(aten.gt.Scalar, write(aten.sum.dim_IntList, values, [-1]), 0.0)
    return write(aten.logical_and.default, each, some)

"""What a compiler must not put into one memory: a last rewrite of a functional graph, when nothing is left out any more.

    clone = x.clone()                                                        fresh = fresh(x)
    copy_(x, y)            ─ a no-op is left out ─▶  copy_(x, y)    ─▶       copy_(x, y)
    copy_(y, clone)                                  copy_(y, x)             copy_(y, fresh)

A functional graph ends in copies to the inputs that the program writes. As values they all happen at once; a compiler makes
them one after the other, and by then a source that is an input, or a view of one, may have been overwritten. So it is with
results: a value that a no-op stood for would be the very memory of an input, or of another result.

Behind this rewrite Inductor lets operators that write to a part (`index_put`, `select_scatter`, lists, custom operators) write
into their argument, an input too if the program writes to it at all. It does not ask whether that input is to be overwritten
by something else, whether the value is a result as well, nor whether the operator reads what it overwrites. So such a value
counts as lying in its argument, and what is read from there gets memory of its own. An operator over a list writes its tensors
one after the other: what is computed from one of them for another is computed before.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence, Set
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.graph_check import add_like
from treeplay.lower.functional import apart, fresh
from treeplay.lower.inductor.late import compute_once, is_in_place_list, is_pointwise, reads_elsewhere
from treeplay.lower.masked import PUTS, fill_masked
from treeplay.torch_seam.fx import base_node, is_view
from treeplay.torch_seam.operators import HigherOrderOperator
from treeplay.torch_seam.tensors import storage_of

aten = torch.ops.aten

Groups = tuple[int | None, ...]
"""For each result the memory that it may lie in: results of one number may share it, those of a negative one may lie in an
input. None for what is no tensor."""

_PARTS: dict[Any, Any] = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.diagonal_scatter.default: aten.diagonal.default,
    aten.as_strided_scatter.default: aten.as_strided.default,
}
_WRITES_A_PART = frozenset({*PUTS, *_PARTS})


def sharing_groups(module: torch.fx.GraphModule) -> Groups:
    """Which results share memory in a graph as it was traced, by its fakes."""
    inputs = {_storage(node) for node in module.graph.find_nodes(op="placeholder")}
    numbers: dict[int, int] = {}
    found: list[int | None] = []
    for result in _results(module.graph):
        storage = _storage(result)
        if storage is None:
            found.append(None)
        else:
            number = numbers.setdefault(storage, len(numbers))
            found.append(-1 - number if storage in inputs else number)
    return tuple(found)


def keep_apart(graph: torch.fx.Graph, groups: Sequence[int | None]) -> None:
    """Give sources of final copies, results, and what an operator reads of the memory that it writes to, memory of their own
    where they would lie in another's."""
    fill_masked(graph)
    copies = [node for node in graph.find_nodes(op="call_function", target=aten.copy_.default) if _is_final(node)]
    for node in [node for node in copies if node.args[0] is node.args[1]]:  # it counts as a write, and not as a reader
        copies.remove(node)
        graph.erase_node(node)
    written = {node.args[0] for node in copies}
    _keep_results(graph, groups, copies, written)
    _keep_sources(graph, copies)
    _keep_read(graph, written)
    _keep_listed(graph, written)
    _keep_parts(graph, copies)
    compute_once(graph, copies)


def _is_final(node: Node) -> bool:
    target = node.args[0]
    return isinstance(target, Node) and target.op == "placeholder"


def _keep_sources(graph: torch.fx.Graph, copies: Sequence[Node]) -> None:
    overwritten: set[Any] = set()
    made: dict[Node, Node] = {}
    for node in copies:
        target, source = node.args[0], node.args[1]
        if isinstance(source, Node) and (_homes(source) & overwritten or _is_elsewhere(source, target)):
            if source not in made:
                made[source] = _fresh(graph, source, before=copies[0])
            node.update_arg(1, made[source])
        overwritten.add(target)


def _is_elsewhere(source: Node, target: Any) -> bool:
    """Whether a source lies in its target at another place, or is taken to lie in it and does not."""
    if source is target:
        return False
    if base_node(source) is not source:  # a view: the kernel that copies it would read what it has written
        return target in _homes(source) or reads_elsewhere(source, target, {target})
    # Inductor leaves out a copy of any result of an operator over lists to any of its arguments.
    into = _written_into(source) if source.target is operator.getitem else []
    return bool(into) and target not in into


def _keep_results(
    graph: torch.fx.Graph, groups: Sequence[int | None], copies: Sequence[Node], written: Collection[Any]
) -> None:
    output, results = graph.output_node(), _results(graph)
    owners: dict[Node, int] = {}
    bases: dict[tuple[Node, int], Node] = {}
    kept = list(results)
    for at, (result, group) in enumerate(zip(results, groups, strict=True)):
        if not isinstance(result, Node) or group is None:
            continue
        base = base_node(result)
        is_in_input = base.op == "placeholder" or not _homes(base).isdisjoint(written)
        if owners.setdefault(base, group) == group and (not is_in_input or group < 0):
            continue
        # What an input held before it is written.
        before = copies[0] if copies and is_in_input else output
        if groups.count(group) == 1:
            kept[at] = _fresh(graph, result, before=before)
            continue
        if (base, group) not in bases:
            bases[base, group] = _fresh(graph, base, before=before)
        kept[at] = _again(graph, result, base, bases[base, group], before=before)
    output.args = (tuple(kept),)


def _keep_read(graph: torch.fx.Graph, written: Collection[Any]) -> None:
    for node in [node for node in graph.nodes if node.target in _WRITES_A_PART]:
        target, root = node.args[0], _root(node)
        if root.op == "placeholder" and root not in written:
            continue  # nothing writes to this one
        homes = _homes(target)
        made: dict[Node, Node] = {}

        def read(source: Node) -> Node:
            if base_node(source) not in homes:
                return source
            if source not in made:
                made[source] = _fresh(graph, source, before=node)
            return made[source]

        node.args = (target, *torch.fx.map_arg(node.args[1:], read))


def _keep_listed(graph: torch.fx.Graph, written: Set[Any]) -> None:
    for node in [node for node in graph.nodes if is_in_place_list(node.target)]:
        targets: Any = node.args[0]
        overwritten = written & set(targets)
        made: dict[Node, Node] = {}

        def read(target: Node, source: Any) -> Any:
            if not isinstance(source, Node) or not reads_elsewhere(source, target, overwritten):
                return source
            if source not in made:
                made[source] = _fresh(graph, source, before=node)
            return made[source]

        if overwritten:
            lists = (
                list(map(read, targets, item)) if isinstance(item, (list, tuple)) else item for item in node.args[1:]
            )
            node.args = (targets, *lists)


def _keep_parts(graph: torch.fx.Graph, copies: Sequence[Node]) -> None:
    """Read what was written in part, and is to be written again, by kernels of their own: behind the first of these writes
    Inductor no longer sees where a kernel reads what it writes, if two become one."""
    parts = [node for node in graph.nodes if node.target in _WRITES_A_PART]
    latest = {_root(node): node for node in parts}
    overwritten = {node.args[0] for node in copies if not _is_part_of(node.args[1], node.args[0])}
    for part in parts:
        root = _root(part)
        if latest[root] is part and root not in overwritten:
            continue
        for view in _views(part):
            readers = {user for user in view.users if _reads(user, view) and not _writes_back(view, user)}
            if readers:
                with graph.inserting_after(view):
                    made = add_like(graph, apart, (view,), view)
                view.replace_all_uses_with(made, readers.__contains__)


def _views(node: Node) -> list[Node]:
    found = [node]
    for view in found:
        found += [user for user in view.users if is_view(user) and user.args[0] is view and user not in found]
    return found


def _reads(user: Node, view: Node) -> bool:
    if is_view(user) or user.op == "output" or user.target is aten.copy_.default:
        return False
    return user.target not in _WRITES_A_PART or view in user.all_input_nodes[1:]


def _writes_back(view: Node, user: Node) -> bool:
    """Whether a reader only computes what the very elements that it reads are replaced by: `x[0] += 1`."""
    value, shape = view, view.meta["val"].shape
    while is_pointwise(user) and len(user.users) == 1:
        if user.meta["val"].shape != shape:
            return False
        value, (user,) = user, user.users
    if value is view:
        return False
    if user.target is aten.copy_.default:
        return user.args[1] is value and _is_part_of(view, user.args[0])
    is_same = view.target is _PARTS.get(user.target) and view.args[1:] == user.args[2:]
    return is_same and user.args[:2] == (view.args[0], value)


def _root(node: Node) -> Node:
    """The node in whose memory a chain of parts is written."""
    while (base := base_node(node)).target in _WRITES_A_PART:
        node = base.args[0]  # type: ignore[assignment]
    return base


def _is_part_of(node: Any, target: Any) -> bool:
    """Whether a value is a tensor of which parts were written, the whole of it."""
    while isinstance(node, Node) and node.target in _WRITES_A_PART:
        node = node.args[0]
    return node is target


def _homes(node: Node) -> set[Node]:
    """The nodes in whose memory the value of `node` may come to lie."""
    found: set[Node] = set()
    waiting = [node]
    while waiting:
        base = base_node(waiting.pop())
        if base not in found:
            found.add(base)
            waiting += _written_into(base)
    return found


def _written_into(node: Node) -> list[Node]:
    """The arguments into which an operator may be made to write its value."""
    if node.target in _WRITES_A_PART:
        return [node.args[0]]  # type: ignore[list-item]
    if node.target is not operator.getitem:
        return []
    source: Any = node.args[0]
    at: Any = node.args[1]
    if is_in_place_list(source.target):  # in place only where all of the list are inputs
        return [source.args[0][at]] if source.args[0][at].op == "placeholder" else []
    if not isinstance(source.target, HigherOrderOperator):
        return []
    if "_all_bases" in source.kwargs:  # behind what the operator returns
        bases = source.kwargs["_all_bases"]
        at -= len(source.meta["val"]) - len(bases)
        return [bases[at]] if at >= 0 else []
    return list(source.all_input_nodes)


def _again(graph: torch.fx.Graph, view: Node, base: Node, other: Node, *, before: Node) -> Node:
    """The view of `other` that `view` is of `base`."""
    if view is base:
        return other
    source: Any = view.args[0]
    source_again = _again(graph, source, base, other, before=before)
    with graph.inserting_before(before):
        return graph.node_copy(view, lambda item: source_again if item is source else item)


def _fresh(graph: torch.fx.Graph, source: Node, *, before: Node) -> Node:
    is_written = any(home.target in _WRITES_A_PART for home in _homes(source))
    with graph.inserting_before(before):
        return add_like(graph, apart if is_written else fresh, (source,), source)


def _results(graph: torch.fx.Graph) -> Any:
    return graph.output_node().args[0]


def _storage(node: Any) -> int | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return storage_of(value) if isinstance(value, torch.Tensor) else None

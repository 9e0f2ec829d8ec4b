"""Views that a forward would save for its backward: what they are views of is saved, and the backward views it again.

    forward   w, x ─▶ x @ w.t(), w.t()             forward   w, x ─▶ x @ w.t(), w
    backward  wt, g ─▶ g @ wt.t()           ▶      backward  w, g ─▶ v = w.t(); g @ v.t()

A view made in the forward costs the host a tensor in every call, and another one to detach it for autograd; inside of a
compiled backward it costs nothing. Both know of a write to the weight in between: a view has the version of what it views.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.fx

from treeplay.graph_check import add_placeholder
from treeplay.wrap.aot.tracing.stashed import IS_STASHED

aten = torch.ops.aten

_ANY_LAYOUT = frozenset(
    (
        *(aten.t.default, aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.squeeze.default),
        *(aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default),
    )
)
"""Views of whole tensors that can be taken however these lie in memory."""
_OTHERWISE_READ = frozenset((aten._conj.default, aten._neg_view.default))
"""Views that read as the conjugate or the negative of memory. No recording takes or gives one, so none is saved: what each is a
view of takes as much memory."""
_SAME_LAYOUT = frozenset((aten.view.default, aten.expand.default))
"""Views that can be taken again of what lies as it did: of an argument, and not of what a compiler lays out as it likes."""


def without_saved_views(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule, *, returned: int) -> None:
    """Rewrite two graphs, of which the first gives `returned` values before those that it saves.

    Views of arguments are replaced, those of values that leave the forward anyway, and those that no recording could hold."""
    output = forward.graph.output_node()
    outputs: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    inputs = backward.graph.find_nodes(op="placeholder")
    leaving = {node for node in outputs[:returned] if isinstance(node, torch.fx.Node)}
    leaving |= {_without_alias(node) for node in outputs[returned:]}
    taken = dict(zip(outputs[returned:], inputs, strict=False))  # gradients, and what else comes, follow
    if len(taken) < len(outputs) - returned:  # one value is saved twice
        return
    origin = {placeholder: node for node, placeholder in taken.items()}
    # Behind all inputs, none of which may follow a call.
    begin = inputs[-1].next if inputs else backward.graph.output_node()
    dead: list[torch.fx.Node] = []
    for node, placeholder in list(taken.items()):
        root, steps = _root(node, leaving)
        if not steps:
            continue
        if root not in taken:
            taken[root] = _input_like(root, before=placeholder)
            origin[taken[root]] = root
        view = taken[root]
        with backward.graph.inserting_before(begin):
            for step in () if _turn_back(steps) else steps:
                view = backward.graph.node_copy(step, lambda _, source=view: source)  # type: ignore[misc]
        placeholder.replace_all_uses_with(view)
        backward.graph.erase_node(placeholder)
        del origin[placeholder]
        dead += reversed(steps)
    saved = [origin[node] for node in backward.graph.find_nodes(op="placeholder") if node in origin]
    if saved == outputs[returned:]:
        return
    if "desc" in output.meta:  # torch's word for what each output is
        told = dict(zip(outputs, output.meta["desc"], strict=False))
        output.meta["desc"] = [*output.meta["desc"][:returned], *map(told.get, saved)]
    output.args = ((*outputs[:returned], *saved),)
    for step in dict.fromkeys(dead):
        if not step.users:
            forward.graph.erase_node(step)
    for module in (forward, backward):
        module.graph.lint()
        module.recompile()


def _root(node: torch.fx.Node, leaving: Collection[torch.fx.Node]) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
    """What is saved in the place of `node`, and the steps that lead from it to `node`."""
    found, steps, at, behind = node, list[torch.fx.Node](), node, list[torch.fx.Node]()
    is_free, is_memory = True, True
    while at.target in _ANY_LAYOUT or at.target in _OTHERWISE_READ or at.target in _SAME_LAYOUT:
        if len(at.all_input_nodes) > 1:  # a size that is no number
            break
        is_free = is_free and at.target not in _SAME_LAYOUT
        is_memory = is_memory and at.target not in _OTHERWISE_READ
        behind.insert(0, at)
        at = at.all_input_nodes[0]
        if _is_kept_apart(at):
            break
        if at.op == "placeholder" or (is_free and (at in leaving or not is_memory)):
            found, steps = at, list(behind)
    return found, steps


def _without_alias(node: torch.fx.Node) -> torch.fx.Node:
    while node.target in (aten.alias.default, aten.detach.default):
        node = node.all_input_nodes[0]
    return node


def _turn_back(steps: Sequence[torch.fx.Node]) -> bool:
    """Whether steps do nothing but reorder dimensions, and all are at last where they were."""
    order = list(range(steps[0].all_input_nodes[0].meta["val"].dim()))
    before = list(order)
    for step in steps:
        if step.target is aten.permute.default:
            order = [order[dimension] for dimension in step.args[1]]  # type: ignore[union-attr,index]
        elif step.target is aten.t.default and len(order) == 2:
            order.reverse()
        else:
            return False
    return order == before


def _input_like(root: torch.fx.Node, *, before: torch.fx.Node) -> torch.fx.Node:
    with before.graph.inserting_before(before):
        made = add_placeholder(before.graph, root.name)
    made.meta = dict(root.meta)
    return made


def _is_kept_apart(node: torch.fx.Node) -> bool:
    """Whether a node is kept without noticing later writes, after all others."""
    return bool(node.meta.get(IS_STASHED))

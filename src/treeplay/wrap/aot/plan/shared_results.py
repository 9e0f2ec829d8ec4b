"""Results of an inference graph that share memory: the graph returns what they are views of, and the views are taken of it.

    t = x.flip(0); return t[0], t[1:]      ─▶      graph returns t      ─▶      t.as_strided(...), t.as_strided(...)

Torch's trace tells of such views only where gradients are needed. A compiler that computes each result by itself gives each
memory of its own, and a write to one would no longer be seen in the other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from treeplay.torch_seam.aot import Traced
from treeplay.torch_seam.fx import base_node
from treeplay.torch_seam.modes import is_wrapper
from treeplay.torch_seam.tensors import storage_of
from treeplay.values.output import Fresh, Result, View
from treeplay.wrap.aot.plan.bases import layout_of
from treeplay.wrap.aot.plan.facts import CallPlan
from treeplay.wrap.aot.plan.overlap import length


def with_common_values(traced: Traced, plan: CallPlan) -> CallPlan:
    """The plan in which results that share memory are views of one value. Rewrites what the graph returns."""
    if traced.is_joint or plan.opened is not None:
        return plan
    output = traced.graph.graph.output_node()
    values: list[Any] = list(output.args[0])  # type: ignore[arg-type]
    results = list(plan.results)
    for group in _groups(values, results, plan.tokens):
        _join(group, values, results, plan.tokens)
    if results == list(plan.results):
        return plan
    output.args = (tuple(values),)
    traced.graph.graph.eliminate_dead_code()
    traced.graph.recompile()
    return replace(plan, results=tuple(results))


def with_own_versions(plan: CallPlan, own: Collection[int]) -> CallPlan:
    """The plan in which these results, which share memory with something else, count their versions by themselves."""
    results = list(plan.results)
    for k in own:
        result = results[k]
        if isinstance(result, Fresh):
            results[k] = View(result, None, is_detached=True, has_own_version=True)
        elif isinstance(result, View):
            results[k] = replace(result, is_detached=True, has_own_version=True)
    return replace(plan, results=tuple(results))


def _groups(values: Sequence[Any], results: Sequence[Result], tokens: int) -> list[list[int]]:
    """Results, by their positions, that lie in one new tensor."""
    found: dict[Node, list[int]] = {}
    for at, result in enumerate(results):
        node = values[tokens + result.index] if isinstance(result, Fresh) else None
        if isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor):
            base = _base(node)
            if base is not None:
                found.setdefault(base, []).append(at)
    return [group for group in found.values() if len(group) > 1]


def _join(group: Sequence[int], values: list[Any], results: list[Result], tokens: int) -> None:
    nodes = {at: values[tokens + results[at].index] for at in group}  # type: ignore[union-attr]
    base = _base(nodes[group[0]])
    whole = next((at for at in group if nodes[at] is base), None)
    place: int = results[group[0] if whole is None else whole].index  # type: ignore[union-attr]
    for at in group:
        if at != whole:
            values[tokens + results[at].index] = None  # type: ignore[union-attr]
            # Of a base that begins where its storage does.
            results[at] = View(Fresh(place), layout_of(nodes[at].meta["val"]))
    values[tokens + place] = base


def _base(node: Node) -> Node | None:
    """What a value is a view of, or itself, if a view of that can be taken again by its layout alone."""
    base = base_node(node)
    view, whole = node.meta["val"], base.meta.get("val")
    if base.op != "call_function" or not isinstance(whole, torch.Tensor) or is_wrapper(whole):
        return None
    if not all(type(number) is int for value in (view, whole) for number in (*value.size(), *value.stride())):
        return None  # of a size that depends on values, which no layout can name
    is_plain = all(
        value.layout is torch.strided and not value.is_neg() and not value.is_conj() for value in (view, whole)
    )
    is_alike = is_plain and view.dtype is whole.dtype and storage_of(view) == storage_of(whole)
    lies_densely = is_alike and whole.storage_offset() == 0 and length(whole) == whole.numel() * whole.element_size()
    return base if lies_densely else None

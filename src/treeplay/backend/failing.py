"""Operators of a captured graph that fail on values: what it has done is taken back, and the program runs as it is.

    call ── compiled graph ──▶ raises ── written inputs, generators: as before ──▶ the program itself, which raises

So the exception is eager's, and so is what was written by then. On a GPU an operator fails after the launch, if anybody learns
of it at all.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from treeplay.backend.metadata import example_spec
from treeplay.backend.options import Options
from treeplay.plan.failing import MOST_BYTES, bytes_to_keep, called, to_keep
from treeplay.torch_seam.operators import HigherOrderOperator
from treeplay.torch_seam.tensors import storage_of
from treeplay.trace.signature.prune import TORCHS_OWN
from treeplay.values.boxed import Boxed
from treeplay.values.failing import ToKeep
from treeplay.wrap.take_back import TakeBack


def kept_by(module: torch.fx.GraphModule, options: Options) -> tuple[ToKeep | None, Options]:
    """What each call of a graph has to keep, and the options to compile it under: what writes too much to be kept runs as
    operators in order, which write at the very end."""
    graph = _described(module)
    if options.inner == "aten":
        return to_keep(graph, is_in_order=True), options
    keep = to_keep(graph, is_in_order=False)
    if options.inner == "inductor" and keep is not None and not keep.unless and bytes_to_keep(graph, keep) > MOST_BYTES:
        return to_keep(graph, is_in_order=True), dataclasses.replace(options, inner="aten")
    return keep, options


def _described(module: torch.fx.GraphModule) -> torch.fx.Graph:
    """The graph with the facts that our own traces note at their nodes."""
    graph = copy.deepcopy(module.graph)
    # Our own traces tell inputs by their names, `in0` and so on; these are called otherwise.
    for position, node in enumerate(graph.find_nodes(op="placeholder")):
        node.meta["input"] = position
    for node in graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            node.meta["spec"], node.meta["storage"] = example_spec(value), storage_of(value)
    return graph


def taken_back(run: Boxed, keep: ToKeep | None) -> Boxed:
    """`run`, after a failure of which everything is as before."""
    if keep is None or keep.is_nothing:
        return run
    back = TakeBack(keep, (torch.default_generator,))

    def call(args: list[Any]) -> Sequence[Any]:
        before = back.kept(args)
        try:
            return run(args)
        except Exception:
            back.put_back(before)
            raise

    return call


def acts_outside(module: torch.fx.GraphModule) -> bool:
    """Whether an operator may be somebody's own: what it does beside its results cannot be taken back."""
    calls = (node for node in module.graph.nodes if node.op not in ("placeholder", "get_attr", "output"))
    return any(map(_is_somebodys, calls))


def _is_somebodys(node: torch.fx.Node) -> bool:
    op = called(node)
    if op is not None:
        return op.namespace not in TORCHS_OWN
    return isinstance(node.target, (str, HigherOrderOperator))

"""The strides of a graph's results: as traced, as a compiler made them, and a copy where a user would see a difference."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from treeplay.errors import LoweringError
from treeplay.torch_seam import symbols
from treeplay.torch_seam.tensors import strided_copy
from treeplay.values.boxed import Boxed

Strides = tuple[int, ...] | None


def noted_strides(module: torch.fx.GraphModule) -> list[Strides]:
    """The strides that each result of a graph was traced with; None for one that is no tensor."""
    results: Any = module.graph.output_node().args[0]
    nodes = [part if isinstance(part, torch.fx.Node) else None for part in results]
    values = [None if node is None or _is_token(node) else node.meta.get("val") for node in nodes]
    return [tuple(value.stride()) if isinstance(value, torch.Tensor) else None for value in values]


def visible_strides(noted: Sequence[Strides], visible: Sequence[int] | None) -> list[tuple[int, tuple[int, ...]]]:
    """Positions and strides of the tensors among the visible results, where these are numbers: where a size depends on values,
    strides may be symbols that nobody can resolve."""
    chosen = range(len(noted)) if visible is None else visible
    told = [(at, stride) for at in chosen if (stride := noted[at]) is not None]
    return [(at, stride) for at, stride in told if all(isinstance(step, int) for step in stride)]


def check_symbolic_strides(made: Sequence[Strides], noted: Sequence[Strides], visible: Sequence[int] | None) -> None:
    """Raise `LoweringError` unless visible results have the strides that they were traced with, whatever their symbols are."""
    for at in range(len(noted)) if visible is None else visible:
        wanted, found = noted[at], made[at]
        if wanted is not None and not (found is not None and symbols.are_same(wanted, found)):
            raise LoweringError(f"result {at} has the strides {found}, and was traced with {wanted}")


def _is_token(node: torch.fx.Node) -> bool:
    """Whether a result only keeps operators with side effects in order; no tensor comes back for it."""
    source: Any = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    return isinstance(source, torch.fx.Node) and source.target is torch.ops.higher_order.with_effects


def with_strides(run: Boxed, wanted: Sequence[tuple[int, tuple[int, ...]]]) -> Boxed:
    """`run` with each of its results that has other strides than `wanted` replaced by a copy with these.

    With nothing wanted it is `run` itself."""
    if not wanted:
        return run

    def call(args: list[Any]) -> Sequence[Any]:
        results = run(args)
        wrong = [(at, stride) for at, stride in wanted if results[at].stride() != stride]
        if not wrong:
            return results
        results = list(results)
        for at, stride in wrong:
            results[at] = strided_copy(results[at], stride)
        return results

    return call

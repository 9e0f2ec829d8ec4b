"""Results keep the strides that they were traced with: a backward is compiled for those, and users see eager's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

Boxed = Callable[[list[Any]], Sequence[Any]]


def traced_strides(module: torch.fx.GraphModule) -> list[tuple[int, tuple[int, ...]]]:
    """The positions and strides of the tensors that a graph with noted values returns."""
    results: Any = module.graph.output_node().args[0]
    nodes = [part if isinstance(part, torch.fx.Node) else None for part in results]
    values = [None if node is None or _is_token(node) else node.meta.get("val") for node in nodes]
    return [(at, tuple(value.stride())) for at, value in enumerate(values) if isinstance(value, torch.Tensor)]


def _is_token(node: torch.fx.Node) -> bool:
    """Whether a result only keeps operators with side effects in order; no tensor comes back for it."""
    source: Any = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else None
    return isinstance(source, torch.fx.Node) and source.target is torch.ops.higher_order.with_effects


def with_strides(run: Boxed, wanted: Sequence[tuple[int, tuple[int, ...]]]) -> Boxed:
    """`run` with each of its results that has other strides than `wanted` replaced by a copy with these."""

    def call(args: list[Any]) -> Sequence[Any]:
        results = run(args)
        wrong = [(at, stride) for at, stride in wanted if results[at].stride() != stride]
        if not wrong:
            return results
        results = list(results)
        for at, stride in wrong:
            results[at] = laid_out(results[at], stride)
        return results

    return call


def laid_out(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy of `tensor` with the given strides, in the least memory; along a dimension of stride 0 its first part is shown."""
    first = tensor
    for dimension, step in enumerate(stride):
        if step == 0 and tensor.size(dimension) > 1:
            first = first.narrow(dimension, 0, 1)
    made = torch.empty_strided(first.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(first).expand(tensor.size())

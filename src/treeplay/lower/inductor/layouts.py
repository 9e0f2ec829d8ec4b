"""What a compiler is told about memory layouts: results have eager's strides, convolutions compute with channels last.

    forward ── conv ──▶ clone(channels last) ──▶ ...          metadata follows: what is computed from a channels-last
    backward ── conv backward on channels-last clones ──▶     tensor is channels last, in the forward and the backward

Inductor gives convolutions channels last by itself where it compiles forward and backward apart: the backward is compiled for
what the forward saved. In one graph of both it asks the metadata, which is eager's; so here the metadata is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx import Node

from treeplay.errors import LoweringError
from treeplay.graph_check import check_graph

aten = torch.ops.aten

_CONVOLUTIONS = {aten.convolution.default: (0, 1), aten.convolution_backward.default: (0, 1, 2)}
_IMAGES = 4  # dimensions: batch, channels, height, width
_PADS = (aten.constant_pad_nd.default, aten.cat.default)  # which of them pads products depends on the release
_LIES_OTHERWISE = frozenset({aten._cudnn_rnn.default})  # with the batch first: transposed


def check_layouts(graph: torch.fx.Graph) -> None:
    """Raise `LoweringError` for operators that lay out results in another way than they tell a compiler, which would misread
    them."""
    found = next((node for node in graph.nodes if node.target in _LIES_OTHERWISE), None)
    if found is not None:
        raise LoweringError(f"{found.target} lays out its results in another way than it tells a compiler")


def has_convolutions_both_ways(module: torch.fx.GraphModule) -> bool:
    """Whether a graph computes convolutions and gradients of them."""
    return all(any(module.graph.find_nodes(op="call_function", target=target)) for target in _CONVOLUTIONS)


def put_channels_last(module: torch.fx.GraphModule, keep_stride: Callable[..., Any]) -> None:
    """Let convolutions of images, forward and backward, read channels-last tensors; results stay as they are laid out.

    `keep_stride(tensor, stride)` is an operator whose result has these strides, if it can without a copy."""
    graph = module.graph
    strides = _strides_of_results(graph)
    last: dict[Node, Node] = {}
    for node in list(graph.nodes):
        for at in _CONVOLUTIONS.get(node.target, ()):
            source = node.args[at]
            if isinstance(source, Node) and source.meta["val"].dim() == _IMAGES:
                if source not in last:
                    last[source] = _after(graph, source)
                node.update_arg(at, last[source])
    for source, clone in last.items():
        # An input keeps its place: it may be written. What is computed is only needed in its new layout.
        if source.op == "call_function":
            source.replace_all_uses_with(clone, _all_but(clone))
    _keep_strides_of_results(graph, strides, keep_stride)
    graph.lint()
    check_graph(graph, "convolutions got channels last")
    module.recompile()


def lay_out_results(
    module: torch.fx.GraphModule, strides: Sequence[Sequence[int]], keep_stride: Callable[..., Any]
) -> None:
    """Lay results out as the program did: a functional graph makes a new tensor for each write, which lies as its operator
    likes."""
    results: Any = module.graph.output_node().args[0]
    wanted = [
        list(stride) if _lies_otherwise(result.meta["val"], stride) else None
        for result, stride in zip(results, strides, strict=True)
    ]
    if any(wanted):
        _keep_strides_of_results(module.graph, wanted, keep_stride)
        module.recompile()


class ResultLayouts:
    """How the results of a graph lie, to be kept over Inductor's passes over the joint graph.

    Those compute products of odd sizes on padded operands. A result is then a part of a larger tensor and has its strides, and
    Inductor takes them for the program's own."""

    def __init__(self, module: torch.fx.GraphModule, visible: Sequence[int] | None) -> None:
        results: Any = module.graph.output_node().args[0]
        self._strides = [
            _known_stride(result) if visible is None or at in visible else None for at, result in enumerate(results)
        ]
        self._pads = _count_of_pads(module.graph)

    def restore(self, module: torch.fx.GraphModule, propagate: Callable[[], object]) -> None:
        """Copy results that are parts of padded ones. `propagate` notes anew what the nodes of the graph yield."""
        if not any(self._strides) or _count_of_pads(module.graph) == self._pads:
            return
        propagate()
        output = module.graph.output_node()
        results: Any = output.args[0]
        copies = []
        for result, stride in zip(results, self._strides, strict=True):
            copies.append(result)
            if stride is not None and _lies_otherwise(result.meta["val"], stride):
                with module.graph.inserting_before(output):
                    copies[-1] = module.graph.call_function(aten.clone.default, (result,))
                copies[-1].meta["val"] = result.meta["val"].clone()
        output.args = (tuple(copies),)
        module.recompile()


def _known_stride(result: Any) -> list[int] | None:
    value = result.meta.get("val") if isinstance(result, Node) and result.op == "call_function" else None
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    stride = list(value.stride())
    return stride if all(isinstance(step, int) for step in stride) else None


def _count_of_pads(graph: torch.fx.Graph) -> int:
    return sum(len(graph.find_nodes(op="call_function", target=target)) for target in _PADS)


def _lies_otherwise(value: torch.Tensor, stride: Sequence[int]) -> bool:
    return any(
        size > 1 and mine != wanted for size, mine, wanted in zip(value.shape, value.stride(), stride, strict=True)
    )


def _all_but(one: Node) -> Callable[[Node], bool]:
    return lambda user: user is not one


def _after(graph: torch.fx.Graph, source: Node) -> Node:
    """A channels-last copy right behind `source`. As values they are equal, so a compiler need not make both."""
    behind = source
    if source.op == "placeholder":
        # Behind all inputs, none of which may follow a call.
        behind = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(behind):
        clone = graph.call_function(aten.clone.default, (source,), {"memory_format": torch.channels_last})
    clone.meta["val"] = source.meta["val"].clone(memory_format=torch.channels_last)
    return clone


def _strides_of_results(graph: torch.fx.Graph) -> list[list[int] | None]:
    """The strides of the images that a graph computes and returns."""
    results: Any = graph.output_node().args[0]
    return [
        list(result.meta["val"].stride())
        if isinstance(result, Node) and result.op == "call_function" and result.meta["val"].dim() == _IMAGES
        else None
        for result in results
    ]


def _keep_strides_of_results(
    graph: torch.fx.Graph, strides: list[list[int] | None], keep_stride: Callable[..., Any]
) -> None:
    output = graph.output_node()
    results: Any = output.args[0]
    kept = []
    for result, stride in zip(results, strides, strict=True):
        if stride is None:
            kept.append(result)
            continue
        with graph.inserting_before(output):
            kept.append(graph.call_function(keep_stride, (result, stride)))
        value = result.meta["val"]
        kept[-1].meta["val"] = value.new_empty_strided(value.shape, stride)
    output.args = (tuple(kept),)

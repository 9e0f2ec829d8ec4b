"""How much work the largest operator of a graph is: whether a second thread can help at all. Pure.

torch splits an elementwise operator between threads from 32,768 elements on, a matrix product much earlier; below that,
waking the threads costs more than it saves.
"""

from __future__ import annotations

import math

import torch
import torch.fx

from treeplay.torch_seam.operators import operator_name

_MOST_ELEMENTS = 8192
_MOST_PRODUCTS = 2**19
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "mkldnn_rnn_layer")


def is_small(graph: torch.fx.Graph) -> bool:
    """Whether no operator of a traced graph is large enough to be split between threads."""
    return all(_elements(node) <= _MOST_ELEMENTS and _products(node) <= _MOST_PRODUCTS for node in graph.nodes)


def _elements(node: torch.fx.Node) -> int:
    spec = node.meta.get("spec")
    return math.prod(spec.shape) if spec is not None else 0


def _products(node: torch.fx.Node) -> float:
    """Multiplications of a matrix product m×k×n, from its three sizes mk, kn, mn; for a convolution, about as many."""
    if operator_name(node.target) not in _PRODUCTS:
        return 0.0
    sizes = sorted((_elements(argument) for argument in node.all_input_nodes), reverse=True)[:2]
    result = max([_elements(node), *(_elements(user) for user in node.users)])
    return math.sqrt(math.prod([*sizes, result]))

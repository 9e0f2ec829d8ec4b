"""Whether what Inductor compiles on the CPU gets a wrapper in C++: it has to be able to call each operator, and be worth it."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.inductor import fallbacks, lowerings
from treeplay.torch_seam.operators import OpOverload


def is_worth_cpp(graph: torch.fx.Graph) -> bool:
    """Whether a wrapper in C++ can be written, and saves more than it takes to compile (a quarter of a minute, at worst).

    It saves what Python takes between kernels. Where each operator is one that Inductor hands on to torch, there are none.
    """
    nodes = [node for node in graph.nodes if node.op == "call_function"]
    return not any(map(_is_python_only, nodes)) and not all(map(_is_handed_on, nodes))


_PYTHON_ONLY = frozenset(
    (
        torch.ops.higher_order.run_and_save_rng_state,  # of checkpoints
        torch.ops.higher_order.run_with_rng_state,
        torch.ops.higher_order.with_effects,
    )
)
"""What Inductor's C++ wrapper cannot call."""


def _is_python_only(node: torch.fx.Node) -> bool:
    """Whether the C++ wrapper cannot call an operator, or would take the list that it gives for a tensor."""
    target = node.target
    if target in _PYTHON_ONLY:
        return True
    if not isinstance(target, OpOverload) or not _is_handed_on(node):
        return False
    # Views are no calls, but for those of complex tensors.
    is_called = not target.is_view or _is_of_complex(node)
    return is_called and any(str(item.type) != "Tensor" for item in target._schema.returns)


def _is_handed_on(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    return target.is_view or target not in lowerings or target in fallbacks or _is_of_complex(node)


def _is_of_complex(node: torch.fx.Node) -> bool:
    return any(map(_is_complex, (*node.args, node)))


def _is_complex(argument: Any) -> bool:
    # Inductor has no kernels for complex numbers.
    nodes = pytree.arg_tree_leaves(argument)
    values = [
        leaf for node in nodes if isinstance(node, torch.fx.Node) for leaf in pytree.tree_leaves(node.meta.get("val"))
    ]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)

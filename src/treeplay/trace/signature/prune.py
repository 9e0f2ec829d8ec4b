"""Removes from a traced graph what nobody uses: values without readers, and numbers that came in and went nowhere.

An operator that acts is used all the same: it checks something (`_assert_async`, what `linalg.cholesky` asks after its
factorization), or it is somebody's own and may print, count or send.
"""

from __future__ import annotations

import torch
import torch.fx

from treeplay.torch_seam.operators import OpOverload
from treeplay.torch_seam.schemas import is_random, written_untold

_NO_EFFECT = frozenset({torch.ops.aten._assert_tensor_metadata.default})  # checks what a trace knows
TORCHS_OWN = frozenset(
    ("aten", "prims", "prim", "profiler", "inductor", "quantized", "mkldnn", "mkl", "sparse", "treeplay")
)
"""Namespaces of operators whose schemas say all that they do."""


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node must run although its value is not used: it writes a tensor, moves a random generator, or acts."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    writes = target._schema.is_mutable or written_untold(target, node.args, node.kwargs)
    return bool(writes) or is_random(target) or acts(node)


def acts(node: torch.fx.Node) -> bool:
    """Whether a node is there for nothing but what it does beside its results: it has none, or is somebody's own operator
    and its results are not used. A compiler would leave it out."""
    target = node.target
    if not isinstance(target, OpOverload) or target._schema.is_mutable or target in _NO_EFFECT:
        return False
    if not target._schema.returns:
        return target.namespace != "profiler"
    return target.namespace not in TORCHS_OWN and not node.users


def prune(graph: torch.fx.Graph) -> None:
    """Remove dead values in place; tensor inputs stay, number inputs stay only if they are used."""
    for node in reversed(list(graph.nodes)):
        is_number_input = node.op == "placeholder" and "spec" not in node.meta
        if not node.users and (is_number_input or not has_effect(node)):
            graph.erase_node(node)

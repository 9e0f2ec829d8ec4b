"""Whether a traced graph draws random numbers. Pure."""

from __future__ import annotations

import torch.fx

from treeplay.torch_seam.schemas import drops_none, is_random


def draws(graph: torch.fx.Graph) -> bool:
    """Whether an operator of a graph may draw. Attention without dropout could, and does not."""
    return any(is_random(node.target) and not drops_none(node.target, node.args, node.kwargs) for node in graph.nodes)

"""Whether a traced graph draws random numbers. Pure."""

from __future__ import annotations

import torch.fx

from treeplay.torch_seam.schemas import is_random


def draws(graph: torch.fx.Graph) -> bool:
    """Whether an operator of a graph may draw. Attention without dropout could, and does not."""
    return any(is_random(node.target) and not _has_no_dropout(node) for node in graph.nodes)


def _has_no_dropout(node: torch.fx.Node) -> bool:
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    found = [at for at, argument in enumerate(arguments) if argument.name == "dropout_p"]
    given = {arguments[at].name: value for at, value in enumerate(node.args)} | node.kwargs
    return bool(found) and given.get("dropout_p", arguments[found[0]].default_value) == 0.0

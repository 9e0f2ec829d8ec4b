"""Removes from a traced graph what nobody uses: values without readers, and numbers that came in and went nowhere."""

from __future__ import annotations

import torch
import torch.fx

_RANDOM = torch.Tag.nondeterministic_seeded


def has_effect(node: torch.fx.Node) -> bool:
    """Whether a node must run although its value is not used: it writes a tensor or moves a random generator."""
    if node.op in ("placeholder", "output"):
        return True
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target._schema.is_mutable or _RANDOM in target.tags


def prune(graph: torch.fx.Graph) -> None:
    """Remove dead values in place; tensor inputs stay, number inputs stay only if they are used."""
    for node in reversed(list(graph.nodes)):
        is_number_input = node.op == "placeholder" and "spec" not in node.meta
        if not node.users and (is_number_input or not has_effect(node)):
            graph.erase_node(node)

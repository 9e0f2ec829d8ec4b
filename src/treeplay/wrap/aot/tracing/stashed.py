"""Tensors that a custom autograd function keeps on its context, without telling autograd, and what is computed from them.

    forward   ctx.w = w;  y = x * w;  z = y.sin()        backward reads w as it is by then, and y as it was

A split that saved x and w, and computed y again in the backward, would compute it from another w than the forward did.
"""

from __future__ import annotations

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from treeplay.torch_seam.schemas import returns_memory

IS_STASHED = "saved_tensor_with_no_vc_check"
"""Under this name torch notes at a node that eager keeps its value without noticing later writes."""


def compute_once_what_is_stashed(joint: torch.fx.GraphModule) -> None:
    """Mark what is computed from stashed tensors, through views of them too: it is saved, never computed again.

    Where the user asked for another computation, as a checkpoint does, eager reads the stashed tensor anew as well."""
    stashed = {node for node in joint.graph.nodes if node.meta.get(IS_STASHED)}
    if not stashed:
        return
    for node in joint.graph.nodes:
        if node.op != "call_function" or node in stashed or stashed.isdisjoint(node.all_input_nodes):
            continue
        if returns_memory(node.target):
            stashed.add(node)
        elif node.meta.get("partitioner_tag") != "is_backward":
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_SAVE)

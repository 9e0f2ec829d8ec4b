"""Operators that keep something for the backward only where gradients are on, made to do so inside of a forward graph."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from treeplay.torch_seam import trees as pytree
from treeplay.torch_seam.schemas import KEEPS_FOR_BACKWARD


def keep_for_backward(module: torch.fx.GraphModule) -> bool:
    """Make operators that keep something for the backward only where gradients are on do so; whether there are any.

    A graph runs inside of an autograd node, where they are off, and its own backward follows all the same.
    """
    found = [node for node in module.graph.nodes if node.target in KEEPS_FOR_BACKWARD]
    for node in found:
        node.target = Keeping(node.target)
    if found:
        module.recompile()
    return bool(found)


class Keeping:
    """An operator run as if gradients were needed; its results carry none."""

    def __init__(self, op: Any) -> None:
        self.op = op
        self.__name__ = self.__qualname__ = str(op).replace(".", "_")
        self.__module__ = __name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.enable_grad():
            first, *others = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, args)
            result = self.op(first.requires_grad_(), *others, **kwargs)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)

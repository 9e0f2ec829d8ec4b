"""The tensors that a recording's inputs stand for, in one call."""

from __future__ import annotations

import torch

from treeplay.trace.call import Call
from treeplay.values.signature import Argument, Constant, Signature


def current_inputs(signature: Signature, call: Call) -> list[torch.Tensor]:
    """The tensors that the graph's inputs stand for right now."""
    tensors = []
    for item in signature.inputs:
        if isinstance(item.source, Argument):
            tensors.append(call.leaves[item.source.index])
        elif isinstance(item.source, Constant):
            tensors.append(item.source.tensor)
        else:
            tensors.append(item.source.place.read())
    return tensors

"""Which tensors would eager autograd give a gradient to? Read off the history of a callable's outputs.

    outputs ─▶ grad_fn ─▶ ... ─▶ AccumulateGrad of a leaf       a sample, a parameter, or a tensor of the closure
                           └──▶ a node older than the call      history from before, which a recording cannot have

A closure's leaf trains like a parameter. History that begins before the call would be baked in, so it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treeplay.errors import UsageError
from treeplay.torch_seam.autograd import history


def next_sequence_number() -> int:
    """The number that autograd gives to this thread's next node; later nodes have higher ones."""
    with torch.inference_mode(False), torch.enable_grad():
        probe = torch.ones((), requires_grad=True).view_as(torch.ones(()))
    assert probe.grad_fn is not None
    return int(probe.grad_fn._sequence_nr()) + 1


def leaves_behind(outputs: Sequence[torch.Tensor], *, since: int, label: str) -> list[torch.Tensor]:
    """The leaves that the outputs' history ends in, in no particular order.

    Raises `UsageError` if the history goes on to a node made before number `since`.
    """
    found: dict[int, torch.Tensor] = {id(out): out for out in outputs if out.requires_grad and out.is_leaf}
    for node in history(out.grad_fn for out in outputs):
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            found.setdefault(id(leaf), leaf)
        elif node._sequence_nr() < since:
            raise UsageError(_foreign(node, label))
    return list(found.values())


def _foreign(node: Any, label: str) -> str:
    return (
        f"{label} reads a tensor that was computed before the call and has a history of its own ({node.name()}): a "
        "replay would use its old values and could not give gradients to what it came from. Pass it as an argument, "
        "compute it inside of the callable, or detach it"
    )

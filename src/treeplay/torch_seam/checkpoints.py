"""Checkpoints, which compute in the backward once more what they computed in the forward."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint

from treeplay.torch_seam.autograd import saving_hooks

_MODULE = "torch.utils.checkpoint"
CHECKPOINTED: Any = torch.ops.higher_order.tag_activation_checkpoint
"""What a checkpoint is in a graph of Dynamo's: called with the graph of the function, its arguments and the options."""
CONTEXTS_OF_CHECKPOINT = "_checkpoint_context_fn"
"""Under this name that graph's `meta` has the checkpoint's `context_fn`, if it has one."""


def is_computed_again() -> bool:
    """Whether a checkpoint that is not reentrant runs what runs now once more in the backward."""
    hooks = saving_hooks(False)
    return hooks is not None and getattr(hooks[0], "__module__", None) == _MODULE


def is_drawn_anew() -> bool:
    """Whether a checkpoint that is not reentrant runs what runs now once more, and does not put back the states of generators
    for it (`preserve_rng_state=False`), as one of those around it does not."""
    if not is_computed_again():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _CODE and not frame.f_locals.get("preserve", False):
            return True
        frame = frame.f_back
    return False


_CODE = getattr(torch.utils.checkpoint.checkpoint, "__wrapped__", torch.utils.checkpoint.checkpoint).__code__


def is_of_reentrant_checkpoint(node: Any) -> bool:
    """Whether an autograd node is a reentrant checkpoint's, whose backward calls another."""
    return getattr(getattr(node, "_forward_cls", None), "__module__", None) == _MODULE


def ends_recomputation(error: BaseException | None) -> bool:
    """Whether an exception is how a checkpoint breaks off what it recomputes, once all is there that its backward needs."""
    return isinstance(error, getattr(torch.utils.checkpoint, "_StopRecomputationError", ()))

"""The split of a joint graph into a forward and a backward."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition


def min_cut(joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any) -> tuple[Any, Any]:
    """Split a joint graph so that little has to be saved: what is cheap to compute is computed again in the backward."""
    forward, backward = min_cut_rematerialization_partition(joint, inputs, **known)
    return forward, backward


def stored_random_states() -> contextlib.AbstractContextManager[Any]:
    """While this lasts, a split stores states of the default generators for random numbers that are drawn again."""
    without_pairs: contextlib.AbstractContextManager[Any] = functorch_config.patch(
        graphsafe_rng_functionalization=False
    )
    return without_pairs


def keep_all(joint: torch.fx.GraphModule, inputs: Sequence[Any], **known: Any) -> tuple[Any, Any]:
    """Split a joint graph so that nothing is computed twice: what the backward reads is saved, as eager saves it."""
    known.pop("static_lifetime_input_indices", None)  # what is kept does not depend on it
    forward, backward = default_partition(joint, inputs, **known)
    return forward, backward


_TAG = "partitioner_tag"


def is_of_backward(node: torch.fx.Node) -> bool:
    """Whether a node of a joint graph was traced in the backward."""
    return node.meta.get(_TAG) == "is_backward"


def keep_in_forward(node: torch.fx.Node) -> None:
    """Have a split leave a node in the forward, also if nothing there uses it."""
    node.meta[_TAG] = "must_be_in_forward"


def keep_in_backward(node: torch.fx.Node) -> None:
    """Have a split leave a node in the backward, also if it could be computed before."""
    node.meta[_TAG] = "must_be_in_backward"
